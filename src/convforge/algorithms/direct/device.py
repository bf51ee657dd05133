"""The direct ladder on GPUs: one step per file, each host file next to its .cu file."""

from convforge.algorithms.direct.box import BoxesConfig
from convforge.algorithms.direct.boxes import DirectBoxes
from convforge.algorithms.direct.constant import ConstantConfig, DirectConstant
from convforge.algorithms.direct.dp4a import DirectDp4a, StripConfig
from convforge.algorithms.direct.mma import DirectMma, MmaConfig
from convforge.algorithms.direct.naive import DirectNaive, NaiveConfig
from convforge.algorithms.direct.shared import DirectShared, SharedConfig
from convforge.algorithms.direct.small import DirectSmall, SmallConfig
from convforge.algorithms.direct.tiled import DirectTiled, TiledConfig

__all__ = [
    "BoxesConfig", "ConstantConfig", "DirectBoxes", "DirectConstant", "DirectDp4a", "DirectMma", "DirectNaive",
    "DirectShared", "DirectSmall", "DirectTiled", "MmaConfig", "NaiveConfig", "SharedConfig", "SmallConfig",
    "StripConfig", "TiledConfig",
]  # fmt: skip
