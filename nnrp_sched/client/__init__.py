"""The client role: one connection, many sessions, many chats at once.

```python
async with connect("nnrp://127.0.0.1:7437") as connection, connection.session() as session:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    chat = session.chat(body, stream=True)
    async for event in chat:
        print(event)
    print(chat.outcome)
```
"""

from nnrp_sched.client.chat import Chat
from nnrp_sched.client.connect import connect
from nnrp_sched.client.connection import Connection
from nnrp_sched.client.outcome import Outcome
from nnrp_sched.client.session import Session

__all__ = ["Chat", "Connection", "Outcome", "Session", "connect"]
