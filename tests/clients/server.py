"""A `spillway serve` for the tests of this folder, on the demo model unless told, stopped at their end."""

import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "scripts"))

from serving import serving  # noqa: E402

SPILLWAY = pathlib.Path(os.environ.get("SPILLWAY_BINARY", SOURCE / "build/release/spillway"))
DEMO = SOURCE / "configs/demo"


class ServedTest(unittest.TestCase):
    """Tests against one server; `flags` and `model` of the class say how it is started."""

    model = DEMO
    flags = ()

    @classmethod
    def setUpClass(cls):
        context = serving(SPILLWAY, cls.model, *cls.flags)
        cls.url, _ = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
