"""Problems: frozen, hashable, validated descriptions. This package knows no algorithm and no device."""

from convforge.problem.borders import PADDING_ALIASES, PADDING_MODES, border_indices, near_padding_mode, padding_mode_of
from convforge.problem.conv2d import Conv2dProblem
from convforge.problem.elementwise import ElementwiseProblem
from convforge.problem.epilogue import ACTIVATIONS, Epilogue
from convforge.problem.gemm import GemmProblem
from convforge.problem.keys import compile_key, is_small_plane, parse_problem, result_key, tuning_key
from convforge.problem.partition import Tile
from convforge.problem.pool2d import Pool2dProblem
from convforge.problem.protocol import Operand, ProblemBase
from convforge.problem.quantization import Quantization
from convforge.problem.types import DTYPES, PRECISIONS

Problem = Conv2dProblem | Pool2dProblem | GemmProblem | ElementwiseProblem

__all__ = [
    "ACTIVATIONS", "DTYPES", "PADDING_ALIASES", "PADDING_MODES", "PRECISIONS", "Conv2dProblem", "ElementwiseProblem",
    "Epilogue", "GemmProblem", "Operand", "Pool2dProblem", "Problem", "ProblemBase", "Quantization", "Tile",
    "border_indices", "compile_key", "is_small_plane", "near_padding_mode", "padding_mode_of", "parse_problem",
    "result_key", "tuning_key",
]  # fmt: skip
