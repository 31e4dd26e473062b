"""The examples of the embeddings run on the real engine, as their READMEs say."""

from pathlib import Path

import pytest

from nnrp_sched_patches.launch import Serving
from tests.support.stories import check_story

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
STOPPED = r"stopped while running, confirmed by the scheduler: True, \d+ of 1500 tokens made"
STORIES = {
    "embed_openai_client": [
        r"  the harbour: \w",
        r"  the market: \w",
        r"  the school: \w",
        r"  the weather: \w",
        STOPPED,
        r"A hasty client tried three times in vain; the engine had 1 call of it\.",
        r"Spent: \d+ tokens in 6 calls\.",
    ],
    "embed_openai_agents": [
        r"The librarian looked: .*embed_langchain, embed_openai_agents, embed_openai_client",
        rf"RunResultStreaming\.cancel\(\): {STOPPED}",
        r"Both runs were paid by library/librarian: \d+ tokens\.",
    ],
    "embed_pydantic_ai": [
        r"Planned: Trip\(city='.{0,12}', days=[1-9]\)",
        rf"cancel\(\): the response is interrupted; {STOPPED}",
        r"Left of the agency's budget: 1\d\d\d tokens\.",
    ],
    "embed_langchain": [
        r"price\(\{'name': '.{0,12}'\}\): .{0,12} costs \d+ coins\.",
        r"The clerk says: .",
        rf"Left by break: {STOPPED}",
    ],
}


@pytest.mark.parametrize("name", STORIES)
async def test_an_example_tells_its_story(serving: Serving, name: str, tmp_path: Path) -> None:
    await check_story(serving, name, STORIES[name], tmp_path)


@pytest.mark.parametrize("name", STORIES)
def test_an_example_has_a_readme_that_says_how_to_run_it(name: str) -> None:
    readme = (ROOT / "examples" / name / "README.md").read_text()
    assert f"python -m examples.{name}\n" in readme
