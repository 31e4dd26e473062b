"""The capability document."""

from nnrp_sched.profile import Extension, capability_document


def test_a_level_1_server_declares_chat_its_models_and_its_extensions() -> None:
    extra = Extension("nnrp.workflow", critical=False, description="who asks")
    document = capability_document(["m", "n"], True, [extra]).to_builtins()
    assert document == {
        "profile": "openai-compatible",
        "schema_version": "openai-compatible/1",
        "compatibility_levels": [1],
        "operations": [
            {
                "name": "chat.completions.create",
                "streaming": True,
                "non_streaming": True,
                "tool_calls": True,
                "cancellation": True,
            }
        ],
        "models": [{"id": "m", "owned_by": "adapter"}, {"id": "n", "owned_by": "adapter"}],
        "extensions": [
            {"name": "nnrp.workflow", "critical": False, "description": "who asks"},
        ],
    }


def test_an_engine_without_tool_calls_changes_that_flag_only() -> None:
    with_tools = capability_document(["m"], True).to_builtins()
    without = capability_document(["m"], False).to_builtins()
    assert without["operations"][0].pop("tool_calls") is False
    assert with_tools["operations"][0].pop("tool_calls") is True
    assert without == with_tools


def test_what_a_model_takes_is_told_where_it_is_known() -> None:
    document = capability_document(["m"], True, max_model_len=8192).to_builtins()
    assert document["models"] == [{"id": "m", "owned_by": "adapter", "max_model_len": 8192}]
