"""Other libraries behind the contract of our methods, marked ``ours = False``; our methods are compared with them.

:func:`every_algorithm` joins both lists. A library is imported when a plan is made. The methods of a library that is
not installed refuse every problem and name the command that installs it.
"""

from __future__ import annotations

from typing import Any

from convforge.algorithms import algorithms
from convforge.algorithms.contract import Algorithm
from convforge.peers import cublas, cudnn, cudnn_narrow, cupy, npp, opencv, scipy, torch, torch_cuda
from convforge.peers.contract import PeerPlan

PEERS: tuple[Algorithm[Any, Any], ...] = (
    torch.TorchConv2d(),
    torch.TorchConv2dChannelsLast(),
    torch.TorchConv2dPacked(),
    opencv.OpencvFilter2d(),
    opencv.OpencvFilter2dDft(),
    opencv.OpencvSepFilter2d(),
    scipy.ScipyNdimage(),
    scipy.ScipyOaconvolve(),
    torch.TorchMaxPool2d(),
    torch.TorchMatmul(),
    torch.TorchRelu(),
    cudnn.Cudnn(),
    cudnn.CudnnTf32(),
    cudnn_narrow.CudnnInt8(),
    cudnn_narrow.CudnnFp8(),
    torch_cuda.TorchConv2dCuda(),
    torch_cuda.TorchConv2dCudaTf32(),
    torch_cuda.TorchConv2dCudaChannelsLast(),
    torch_cuda.TorchConv2dCudaChannelsLastTf32(),
    torch_cuda.TorchConv2dCudaNchw(),
    cupy.CupyNdimage(),
    npp.NppFilter(),
    torch_cuda.TorchMaxPool2dCuda(),
    cublas.Cublas(),
    cublas.CublasTf32(),
    torch_cuda.TorchMatmulCuda(),
    torch_cuda.TorchMatmulCudaTf32(),
    torch_cuda.TorchReluCuda(),
)

__all__ = ["PEERS", "PeerPlan", "every_algorithm"]


def every_algorithm() -> tuple[Algorithm[Any, Any], ...]:
    """Every method of every operation and backend: ours in the ladder's order, then the peers."""
    return (*algorithms(), *PEERS)
