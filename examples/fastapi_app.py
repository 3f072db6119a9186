"""A FastAPI service with a limit for the whole service, and tighter limits for some routes.

pip install 'tidegate[server]'
python examples/fastapi_app.py
curl -i http://127.0.0.1:8000/tides
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from pydantic import BaseModel
from tidegate import rate_limit
from tidegate.asgi import RateLimitMiddleware

app = FastAPI(title="Harbour")

# Clients are identified by address: each may send bursts of 20, and 300 in any minute.
app.add_middleware(
    RateLimitMiddleware,
    limit=["10/second burst 20", "300/minute"],
    exempt_when=lambda scope: scope["path"] == "/health",
)


class Login(BaseModel):
    name: str
    password: str


def length_of_search(request: Request) -> int:
    """A search costs more if it asks for more results."""
    asked = request.query_params.get("days", "1")
    return min(max(int(asked), 1), 10) if asked.isdigit() else 1


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.get("/tides")
async def tides() -> dict[str, str]:
    return {"high": "04:12", "low": "10:31"}


@app.get("/search")
@rate_limit("30/minute", cost=length_of_search)
async def search(days: int = 1) -> dict[str, int]:
    return {"days": days}


@app.post("/login")
@rate_limit("5/minute", algorithm="sliding-log")
def login(login: Login) -> dict[str, bool]:
    return {"welcome": login.password == "ebb and flow"}


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, port=8000)
