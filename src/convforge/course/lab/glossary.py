"""Names, units and words that a report uses, and what they mean."""

from __future__ import annotations

from convforge.course.lab.book import Book
from convforge.course.language import gettext
from convforge.problem.types import PRECISIONS


def glossary(book: Book) -> list[tuple[str, str]]:
    """The names of cases, problems and configs that a book holds, then the words that its page uses, each explained."""
    every = [result for chapter in book.chapters for result in chapter.run.results]
    kinds = {result.case.partition("_")[0] for result in every}
    keys = {pair.partition("=")[0] for result in every for pair in result.config.split(",")}
    cases, forms, choices = _names()
    return [
        *(pair for pair in cases if pair[0].partition("_")[0] in kinds | {"rgb", "square"}),
        *forms,
        *(pair for pair in choices if keys.intersection(pair[0].split(", "))),
        *_words(),
    ]


Pairs = list[tuple[str, str]]


def _names() -> tuple[Pairs, Pairs, Pairs]:
    """Names of cases by the kind that they begin with, problems and configs, and the commonest keys of configs."""
    cases = [
        ("rgb_to_1_2048_s1",
         gettext("a case: an RGB picture of 2048 pixels a side to 1 channel, stride 1; other names are made alike")),
        ("blur_512_7x7", gettext("a case: a picture of 512 pixels a side by Gaussian filters of 7x7")),
        ("full_512_7x7", gettext("a case: the same size by a filter of full rank, 7x7")),
        ("c3_2048_5x5", gettext("a case: 3 channels, 2048 pixels a side, a filter of 5x5")),
        ("channels_64", gettext("a case: 64 channels, and as many filters")),
        ("float16_c256", gettext("a case: of type float16, 256 channels")),
        ("resnet50_res3_3x3_s2_nchw",
         gettext("a case: a layer of a network, its stage, filter, stride (where it is not 1) and layout")),
        ("square_4096", gettext("a case: a product of two matrices, all their sides 4096")),
    ]  # fmt: skip
    forms = [
        ("n1c3h64w48_k2r3s3_st1_p1_f32_nchw",
         gettext("a problem written out: a batch of 1, 3 channels, 64 rows and 48 columns; 2 filters of 3x3; stride 1, "
                 "padding 1, float32, the layout NCHW")),
        ("block_x=32,block_y=4",
         gettext("a config: what of a method can be chosen; here a block of 32 columns and 4 rows of threads")),
    ]  # fmt: skip
    choices = [
        ("resident", gettext("in a config: threads that an SM shall hold; more leave each fewer registers")),
        ("out_p, out_q, out_k", gettext("in a config: rows, columns and channels of outputs that a thread computes")),
        ("tile_p, tile_q, tile_c, tile_k",
         gettext("in a config: rows, columns, input and output channels that are worked on at once")),
        ("block_m, block_n, block_k",
         gettext("in a config: rows and columns of the product that are computed together, and terms of a step")),
        ("thread_m, thread_n", gettext("in a config: rows and columns of the product that a thread computes")),
        ("stages", gettext("in a config: tiles that are in shared memory, or on their way there, at once")),
        ("plan", gettext("in a config: a plan of cuDNN's, by its number")),
    ]  # fmt: skip
    return cases, forms, choices


def _words() -> Pairs:
    return [
        (gettext("strict"), gettext(PRECISIONS["strict"])),
        (gettext("nominal"),
         gettext("a rate that counts the direct method's operations for a method that does others")),
        (gettext("full rank"),
         gettext("of a filter: it takes as many products of a column and a row to make it as it has rows")),
        (gettext("cold, hot"),
         gettext("cold: calls go round more arrays than the last-level cache holds; hot: they fit, and stay in it")),
        (gettext("Kendall's tau"),
         gettext("how far two orders agree: 1 where they are the same, -1 where one is the other turned round")),
        (gettext("peer"), gettext("a method of a library that is not ours, called by the same rules")),
        (gettext("spread"),
         gettext("half the distance between the quartiles of the samples over their median, written ±")),
        (gettext("level, a tie"), gettext("medians within 5 % of each other, and closer than the spreads of the two")),
        (gettext("too noisy to rank"),
         gettext("spreads so wide that the order cannot be told: neither a tie nor a winner")),
        ("GFLOP/s",
         gettext("1e9 floating-point operations a second; a multiplication and an addition are two of them")),
        ("FMA", gettext("fused multiply-add; its peak is how many FLOP/s a kernel of nothing else reaches here")),
        (gettext("roof"), gettext("the lower of the FMA peak, and copy bandwidth times FLOPs a byte")),
        ("SM", gettext("streaming multiprocessor, the unit of a GPU that runs blocks of threads")),
        (gettext("occupancy"), gettext("threads that an SM holds at once, over the most that it can hold")),
        (gettext("waves of blocks"), gettext("how many times the blocks of a launch fill all SMs")),
        ("GEMM", gettext("general matrix product, C = A B; A has M rows, B has N columns, sums have K terms")),
        ("RMS", gettext("root of the mean of the squares; of errors over that of the true values")),
        (gettext("host to host"),
         gettext("from arrays in the host's memory to such an array: both copies and the call")),
    ]  # fmt: skip
