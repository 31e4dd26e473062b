"""Agents of other frameworks over NNRP: every request of theirs is a call of one of our agents.

| module | what it gives | extra |
|---|---|---|
| `openai_client` | `AsyncOpenAI` and `OpenAI` clients | `openai` |
| `openai_transport` | the transports below them, for httpx and httpx2 | `openai` |
| `openai_agents` | `Model` and `ModelProvider` of the OpenAI Agents SDK | `agents` |
| `pydantic_ai` | a pydantic-ai `Model` | `pydantic-ai` |
| `langchain` | a LangChain `ChatOpenAI` | `langchain` |

Nothing is imported here, so that each module needs its own framework only.
"""
