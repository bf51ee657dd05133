"""Other libraries under the same contract as our methods, marked not ours: our methods are measured against them.

:func:`every_algorithm` joins both lists. Making a plan imports its library; one that is absent refuses, with the line
that installs it.
"""

from __future__ import annotations

from typing import Any

from convforge.algorithms import algorithms
from convforge.algorithms.contract import Algorithm
from convforge.peers.contract import PeerPlan
from convforge.peers.cublas import Cublas, CublasTf32
from convforge.peers.cudnn import Cudnn, CudnnTf32
from convforge.peers.cupy import CupyNdimage
from convforge.peers.npp import NppFilter
from convforge.peers.opencv import OpencvFilter2d, OpencvFilter2dDft, OpencvSepFilter2d
from convforge.peers.scipy import ScipyNdimage, ScipyOaconvolve
from convforge.peers.torch import TorchConv2d, TorchConv2dChannelsLast, TorchConv2dPacked
from convforge.peers.torch_cuda import (
    TorchConv2dCuda,
    TorchConv2dCudaChannelsLast,
    TorchConv2dCudaChannelsLastTf32,
    TorchConv2dCudaNchw,
    TorchConv2dCudaTf32,
)
from convforge.peers.torch_cuda_parts import TorchMatmulCuda, TorchMatmulCudaTf32, TorchMaxPool2dCuda, TorchReluCuda
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
    TorchConv2dCuda(),
    TorchConv2dCudaTf32(),
    TorchConv2dCudaChannelsLast(),
    TorchConv2dCudaChannelsLastTf32(),
    TorchConv2dCudaNchw(),
    CupyNdimage(),
    NppFilter(),
    TorchMaxPool2dCuda(),
    Cublas(),
    CublasTf32(),
    TorchMatmulCuda(),
    TorchMatmulCudaTf32(),
    TorchReluCuda(),
)

__all__ = ["PEERS", "PeerPlan", "every_algorithm"]


def every_algorithm() -> tuple[Algorithm[Any, Any], ...]:
    """Every method of every operation and backend: ours in the ladder's order, then the peers."""
    return (*algorithms(), *PEERS)
