"""A server with images: what a client may have it fetch and decode, and that a fault is the client's."""

import base64
import socket
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from ropeswitch.server.front.limits.media import FAILED
from tests.server.running import ENGINE, running
from tests.vision.families import FAMILIES
from tests.vision.processors import PROCESSORS


def inline(width: int, height: int) -> str:
    file = BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_private_addresses_local_files_and_bombs_are_400(tmp_path: Path) -> None:
    FAMILIES["qwen2.5-vl"].save(tmp_path)
    PROCESSORS["qwen2.5-vl"].make().save_pretrained(tmp_path)
    flags = [*ENGINE, "--served-model-name", "tiny", "--max-image-pixels", "10000"]
    with running(tmp_path, str(tmp_path), *flags) as server, socket.create_server(("127.0.0.1", 0)) as listening:

        def ask(*urls: str) -> tuple[int, Any]:
            content = [
                {"type": "text", "text": "a"},
                *({"type": "image_url", "image_url": {"url": url}} for url in urls),
            ]
            body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 2}
            answer = server.post("/v1/chat/completions", body)
            return answer.status, answer.json.get("error")

        assert ask(inline(60, 60))[0] == 200
        port = listening.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/", "http://localhost:1/", "http://169.254.169.254/latest/meta-data"):
            status, error = ask(url)
            assert (status, error["param"]) == (400, "image_url") and FAILED in error["message"], url
        listening.settimeout(0)
        assert ask("file:///etc/passwd")[0] == ask("data:image/png;base64,AAAA")[0] == 400
        assert ask(inline(20_000, 20_000))[0] == 400
        assert ask(inline(80, 80))[0] == 200
        status, error = ask(inline(80, 80), inline(80, 80))
        assert status == 400 and "12800 pixels or more, and at most 10000" in error["message"]
        assert "Traceback" not in server.log.read_text()
