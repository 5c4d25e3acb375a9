"""`fastnorm apply` on processes of this machine and on a cluster: the bits of the plain command, or nothing at all."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import fastnorm
from fastnorm.__main__ import main
from fastnorm._apply import cluster, files

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.slow
