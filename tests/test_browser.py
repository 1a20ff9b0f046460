"""The page of the browser example, driven by a headless browser: it learns, and sends nothing away."""

import functools
import http.server
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from headless import find_browser

EXAMPLES = Path(__file__).parent.parent / "examples"
PACKAGES = {"name": "onnxsgd-browser", "private": True, "type": "module"}
#: The folders of the examples that the page reads.
PARTS = ("browser", "node")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def site(tmp_path):
    """The address of a copy of the page, with its runtime, and a folder that has the driver's package."""
    browser = find_browser()
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    # the runtime unpacks to a hundred megabytes: once, not once a run
    folder = Path(tempfile.gettempdir(), "onnxsgd-browser")
    folder.mkdir(exist_ok=True)
    packages = json.loads((EXAMPLES / "browser" / "package.json").read_text())["dependencies"]
    dependencies = packages | {"playwright-core": "^1.50.0"}
    (folder / "package.json").write_text(json.dumps(PACKAGES | {"dependencies": dependencies}))
    shutil.copy(EXAMPLES / "browser" / ".npmrc", folder)
    install = ["npm", "install", "--no-package-lock", "--loglevel=error"]
    installed = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install onnxruntime-web: {installed.stderr.strip()[-200:]}")
    for part in PARTS:
        ignored = shutil.ignore_patterns("node_modules", "files")
        shutil.copytree(EXAMPLES / part, tmp_path / part, ignore=ignored)
    (tmp_path / "browser" / "node_modules").symlink_to(folder / "node_modules")
    make = [sys.executable, str(tmp_path / "browser" / "make_files.py")]
    subprocess.run(make, check=True, capture_output=True, text=True)
    shutil.copy(Path(__file__).parent / "browser_page.mjs", folder)
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", browser, folder
        server.shutdown()


@pytest.mark.slow
def test_the_page_learns_a_drawn_digit_and_sends_nothing(site, tmp_path):
    address, browser, folder = site
    drive = ["node", "browser_page.mjs", f"{address}browser/", browser, str(tmp_path / "page.png")]
    done = subprocess.run(drive, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not found["failures"]
    assert found["early"] == "Draw a digit first."
    assert found["seen"].startswith("I see ")
    assert sum(found["before"]) == pytest.approx(1.0, abs=0.05)
    assert found["after"][9] > max(0.5, found["before"][9])
    assert found["points"] == 60
    assert all(url.startswith((address, "blob:", "data:")) for url in found["requests"])
    assert (tmp_path / "page.png").stat().st_size > 10_000
