"""What users call requests, in the engine that several API servers share."""

import pytest

from nnrp_sched_patches.engine_names import Told, external_id, meant

IDS = ["chatcmpl-a-12345678", "0_b-12345678", "1_b-12345678", "twin-11111111", "twin-22222222"]
TOLD = {
    "0_b-12345678": Told("2.1", "p", "x"),
    "1_b-12345678": Told("2.1", "p", "x"),
    "twin-11111111": Told("twin", "p"),
    "twin-22222222": Told("twin#2", None, "x"),
}


@pytest.mark.parametrize(
    ("internal", "external"),
    [("chatcmpl-a-b-12345678", "chatcmpl-a-b"), ("3_x-12345678", "x"), ("a_b-12345678", "a_b")],
)
def test_the_external_id_is_read_from_an_internal_one(internal: str, external: str) -> None:
    assert external_id(internal) == external


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["2.1"], {"0_b-12345678": "2.1", "1_b-12345678": "2.1"}),
        # Nobody told of it: vLLM's external id.
        (["chatcmpl-a"], {"chatcmpl-a-12345678": "chatcmpl-a"}),
        # The other twin shares the external id only.
        (["twin"], {"twin-11111111": "twin"}),
        (["twin#2"], {"twin-22222222": "twin#2"}),
        (["b"], {"0_b-12345678": "b", "1_b-12345678": "b"}),
        (["never", ""], {}),
    ],
)
def test_an_id_means_that_request_and_all_its_choices(
    names: list[str], found: dict[str, str]
) -> None:
    assert meant(IDS, TOLD, names, "id") == found


def test_programs_and_agents_mean_what_was_told_of_them() -> None:
    assert set(meant(IDS, TOLD, ["p"], "program").values()) == {"2.1", "twin"}
    assert set(meant(IDS, TOLD, ["x", "y"], "agent").values()) == {"2.1", "twin#2"}


def test_only_the_asked_for_ids_are_looked_at() -> None:
    assert meant([], TOLD, ["p"], "program") == {}
