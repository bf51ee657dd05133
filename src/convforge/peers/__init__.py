"""Other libraries under the same contract as our methods, marked not ours: what we measure ourselves against.

No library is imported before a plan of its is made; one that is absent refuses, with the line that installs it.
"""

from __future__ import annotations

from typing import Any

from convforge.algorithms.contract import Algorithm
from convforge.peers.contract import PeerPlan
from convforge.peers.cudnn import Cudnn, CudnnTf32
from convforge.peers.opencv import OpencvFilter2d, OpencvFilter2dDft, OpencvSepFilter2d
from convforge.peers.scipy import ScipyNdimage, ScipyOaconvolve
from convforge.peers.torch import TorchConv2d, TorchConv2dChannelsLast, TorchConv2dPacked
from convforge.peers.torch_parts import TorchMatmul, TorchMaxPool2d, TorchRelu

PEERS: tuple[Algorithm[Any, Any], ...] = (
    TorchConv2d(),
    TorchConv2dChannelsLast(),
    TorchConv2dPacked(),
    OpencvFilter2d(),
    OpencvFilter2dDft(),
    OpencvSepFilter2d(),
    ScipyNdimage(),
    ScipyOaconvolve(),
    TorchMaxPool2d(),
    TorchMatmul(),
    TorchRelu(),
    Cudnn(),
    CudnnTf32(),
)

__all__ = ["PEERS", "PeerPlan"]
