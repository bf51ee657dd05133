"""Depthwise convolution on GPUs: several kernels for each layout, each host file next to its .cu file."""

from convforge.algorithms.depthwise.batch import DepthwiseBatch, DepthwiseBatchConfig
from convforge.algorithms.depthwise.channels import ChannelsConfig, DepthwiseChannels
from convforge.algorithms.depthwise.dp4a import DepthwiseDp4a, DepthwiseDp4aConfig
from convforge.algorithms.depthwise.mma import DepthwiseMma, DepthwiseMmaConfig
from convforge.algorithms.depthwise.planes import DepthwisePlanes, PlanesConfig
from convforge.algorithms.depthwise.rows import DepthwiseRows, RowsConfig

__all__ = [
    "ChannelsConfig", "DepthwiseBatch", "DepthwiseBatchConfig", "DepthwiseChannels", "DepthwiseDp4a",
    "DepthwiseDp4aConfig", "DepthwiseMma", "DepthwiseMmaConfig", "DepthwisePlanes", "DepthwiseRows", "PlanesConfig",
    "RowsConfig",
]  # fmt: skip
