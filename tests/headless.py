"""A headless browser for tests of pages."""

import contextlib
import html
import json
import os
import re
import shutil
import signal
import subprocess

import pytest

#: Loads a page in frames of several widths, and replaces itself by what was found in them.
_FRAMES = """<!DOCTYPE html>
<meta charset="utf-8">
{frames}
<script>
addEventListener("load", () => {{
  const found = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument;
    const text = [...page.querySelectorAll("{selector}")].map((part) => part.textContent);
    const images = [...page.images].map((image) => [image.naturalWidth, image.width]);
    return {{ width: page.documentElement.scrollWidth, images, text: text.join("\\n") }};
  }});
  document.body.textContent = "FOUND" + JSON.stringify(found) + "END";
}});
</script>
"""


def find_browser():
    """Return the path of an installed chromium, or skip the test."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no chromium is installed")
    return browser


def look_at(page, selector, widths, folder):
    """Load a page from a file, at several widths of the window, without a network.

    Returns for each width the width of the contents, the natural and the shown width of each image, and the
    text of the elements that a CSS selector finds.
    """
    browser = find_browser()
    frames = "\n".join(
        f'<iframe src="{page.as_uri()}" style="width: {width}px; height: 900px; border: 0"></iframe>'
        for width in widths
    )
    outside = folder / "frames.html"
    outside.write_text(_FRAMES.format(frames=frames, selector=selector), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    options += [
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        "--dump-dom",
    ]
    # in its own group, so that none of its children outlives the test
    with subprocess.Popen(
        [browser, *options, outside.as_uri()],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return json.loads(html.unescape(re.search("FOUND(.*)END", output, re.DOTALL)[1]))
