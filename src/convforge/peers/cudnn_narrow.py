"""cuDNN for 8-bit factors: int8 summed in int32, and 8-bit floats summed in float32, with the epilogue in the graph.

As in NVIDIA's samples int8_fprop.cpp, ConvScaleBiasAct_int8 and fp8_fprop.cpp (NVIDIA/cudnn-frontend): the sums are a
virtual tensor of int32 or float32; the scale, the bias and relu are pointwise nodes that compute in float32; the last
node stores the result in its type. The scale of a problem of 8-bit floats is the product of cuDNN's usual three:
those of x, of w and of the result.
"""

from __future__ import annotations

from convforge.algorithms.traits import Mark
from convforge.errors import Reason
from convforge.peers.cudnn import Cudnn
from convforge.problem import Conv2dProblem, Epilogue
from convforge.problem.types import FP8


class CudnnInt8(Cudnn):
    """cuDNN's int8 convolution: exact sums in int32, then scale, bias and relu in float32.

    Ours compute the epilogue in float64, so that results may differ where they are rounded.
    """

    name = "cudnn_int8"
    summary = "cuDNN's graph API, the fastest of its plans of int8 with int32 sums and an epilogue in float32"
    precision = "epilogue32"
    look = Mark("cudnn", "diamond", (2, 3))

    def _refuses_graph(self, problem: Conv2dProblem) -> Reason | None:
        factors, results = (problem.x_dtype, problem.w_dtype), ("int8", "uint8", "int32", "float16", "float32")
        if factors not in (("int8", "int8"), ("uint8", "int8")) or problem.acc_dtype != "int32":
            return Reason("cuDNN is asked for x of int8 or uint8 and w of int8 alone, with sums in int32")
        if problem.out_dtype not in results:
            return Reason("cuDNN is asked for results of {types} alone", types=", ".join(results))
        return _refuses_epilogue(problem)


class CudnnFp8(Cudnn):
    """cuDNN's convolution of 8-bit floats, with scale, bias and relu in float32.

    The sums are asked for in float32, not in the type FAST_FLOAT_FOR_FP8, which leaves them in the tensor cores' short
    accumulators.
    """

    name = "cudnn_fp8"
    summary = "cuDNN's graph API, the fastest of its plans of 8-bit floats"
    precision = "fp8"
    takes_fp8 = True
    look = Mark("cudnn", "cross", (2, 3))

    def _refuses_graph(self, problem: Conv2dProblem) -> Reason | None:
        results = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32")
        if not {problem.x_dtype, problem.w_dtype} <= FP8 or problem.acc_dtype != "float32":
            return Reason("cuDNN is asked for x and w of 8-bit floats alone, with sums in float32")
        if problem.out_dtype not in results:
            return Reason("cuDNN is asked for results of {types} alone", types=", ".join(results))
        return _refuses_epilogue(problem)


def _refuses_epilogue(problem: Conv2dProblem) -> Reason | None:
    ends = problem.epilogue
    activation = "relu" if ends.activation == "relu" else "identity"
    if problem.padding_mode == "zeros" and ends == Epilogue(scale=ends.scale, bias=ends.bias, activation=activation):
        return None
    return Reason("cuDNN pads with zeros, and is asked for a scale, a bias and ReLU alone")
