"""The figures of the source notebook on cosines, self-attention and the bypass, to the last digit that it prints.

The notebook ran on the vectors that the library brings, GloVe's published ones. What it printed comes out in its own
float32, in float64, and, where it attends, from PyTorch's module with its weights bypassed, too.
"""

import re
from collections.abc import Callable
from decimal import Decimal

import pytest
import torch
from torch import Tensor, nn

from unmasked import bypassed, cosine_attention, self_attention
from unmasked_lessons.embeddings import ship_vectors

ODYSSEY = "I must go back to my ship and to my crew"
ORDER = "We process and ship your order"
Attend = Callable[[Tensor], tuple[Tensor, Tensor]]
SMALL = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]])

PRINTED = {
    "the embedding of ship": """
1.5213,  0.1052,  0.3816, -0.5080,  0.0324, -0.1348, -1.2474,  0.7981,
0.8469, -1.1010,  0.8874,  1.3749,  0.4293,  0.6572, -0.2636, -0.4176,
-0.4885,  0.9106, -1.7158, -0.4380,  0.7839,  0.1964, -0.4066, -0.5397,
0.8244, -1.7434,  0.1428,  0.2804,  1.1688,  0.1690,  2.2271, -0.5827,
-0.4572,  0.6281,  0.5444,  0.2846,  0.4448, -0.5534, -0.3649, -0.0164,
0.4088, -0.8715,  1.5513, -0.8070, -0.1004, -0.2846, -0.3322, -0.5061,
0.4827, -0.6620
""",
    "the first ten numbers of i": """
1.1891e-01,  1.5255e-01, -8.2073e-02, -7.4144e-01,  7.5917e-01,
-4.8328e-01, -3.1009e-01,  5.1476e-01, -9.8708e-01,  6.1757e-04
""",
    "the cosines of the Odyssey": """
1.00, 0.75, 0.86, 0.76, 0.73, 0.90, 0.35, 0.65, 0.73, 0.90, 0.42
0.75, 1.00, 0.85, 0.68, 0.87, 0.69, 0.42, 0.69, 0.87, 0.69, 0.45
0.86, 0.85, 1.00, 0.84, 0.84, 0.81, 0.41, 0.68, 0.84, 0.81, 0.49
0.76, 0.68, 0.84, 1.00, 0.83, 0.76, 0.49, 0.77, 0.83, 0.76, 0.51
0.73, 0.87, 0.84, 0.83, 1.00, 0.68, 0.54, 0.86, 1.00, 0.68, 0.51
0.90, 0.69, 0.81, 0.76, 0.68, 1.00, 0.38, 0.63, 0.68, 1.00, 0.44
0.35, 0.42, 0.41, 0.49, 0.54, 0.38, 1.00, 0.46, 0.54, 0.38, 0.78
0.65, 0.69, 0.68, 0.77, 0.86, 0.63, 0.46, 1.00, 0.86, 0.63, 0.49
0.73, 0.87, 0.84, 0.83, 1.00, 0.68, 0.54, 0.86, 1.00, 0.68, 0.51
0.90, 0.69, 0.81, 0.76, 0.68, 1.00, 0.38, 0.63, 0.68, 1.00, 0.44
0.42, 0.45, 0.49, 0.51, 0.51, 0.44, 0.78, 0.49, 0.51, 0.44, 1.00
""",
    "the cosines of ship": """
0.3466, 0.4178, 0.4068, 0.4853, 0.5401, 0.3791, 1.0000, 0.4586, 0.5401,
0.3791, 0.7848
""",
    "the sum weighted by cosines of two digits": """
3.2289,   0.6422,   1.4712,  -2.3538,   2.2414,  -0.4237,  -4.1052,
2.6216,   0.1719,  -2.4324,   1.3882,   3.7241,  -1.9721,   1.1893,
2.2511,   0.9502,  -0.7646,   1.0289,  -3.0553,  -3.6306,   0.8305,
2.9299,   1.3221,  -0.7092,   2.9745, -10.5959,  -1.3168,   0.2059,
3.5457,  -2.7711,  18.2672,   2.4817,  -3.5887,   0.3297,   1.2718,
0.6539,   1.5873,   0.0195,   0.7724,  -1.4620,  -0.2067,  -1.2464,
2.1504,  -0.1811,  -0.5026,  -0.2888,  -0.5060,  -1.9676,  -0.0605,
-0.6725
""",
    "the sum weighted by the cosines of ship": """
3.2319e+00,  6.4082e-01,  1.4718e+00, -2.3434e+00,  2.2358e+00,
-4.1877e-01, -4.1002e+00,  2.6211e+00,  1.8010e-01, -2.4360e+00,
1.3923e+00,  3.7188e+00, -1.9603e+00,  1.1980e+00,  2.2394e+00,
9.3763e-01, -7.7049e-01,  1.0349e+00, -3.0615e+00, -3.6259e+00,
8.3401e-01,  2.9281e+00,  1.3165e+00, -7.1303e-01,  2.9667e+00,
-1.0567e+01, -1.3099e+00,  2.0283e-01,  3.5362e+00, -2.7571e+00,
1.8220e+01,  2.4698e+00, -3.5804e+00,  3.2604e-01,  1.2760e+00,
6.5701e-01,  1.5889e+00,  1.1571e-02,  7.6620e-01, -1.4560e+00,
-2.0362e-01, -1.2484e+00,  2.1550e+00, -1.8767e-01, -5.0253e-01,
-2.9128e-01, -5.1006e-01, -1.9596e+00, -5.8853e-02, -6.7380e-01
""",
    "the weights of the Odyssey": """
0.36, 0.05, 0.07, 0.05, 0.04, 0.19, 0.01, 0.02, 0.04, 0.19, 0.01
0.14, 0.20, 0.10, 0.06, 0.11, 0.10, 0.03, 0.05, 0.11, 0.10, 0.02
0.18, 0.09, 0.14, 0.09, 0.08, 0.13, 0.02, 0.04, 0.08, 0.13, 0.02
0.14, 0.05, 0.09, 0.19, 0.08, 0.12, 0.03, 0.06, 0.08, 0.12, 0.03
0.11, 0.11, 0.09, 0.09, 0.15, 0.08, 0.04, 0.07, 0.15, 0.08, 0.03
0.19, 0.03, 0.05, 0.04, 0.03, 0.29, 0.01, 0.02, 0.03, 0.29, 0.01
0.03, 0.03, 0.03, 0.04, 0.05, 0.03, 0.55, 0.03, 0.05, 0.03, 0.13
0.10, 0.08, 0.07, 0.10, 0.12, 0.09, 0.04, 0.15, 0.12, 0.09, 0.04
0.11, 0.11, 0.09, 0.09, 0.15, 0.08, 0.04, 0.07, 0.15, 0.08, 0.03
0.19, 0.03, 0.05, 0.04, 0.03, 0.29, 0.01, 0.02, 0.03, 0.29, 0.01
0.06, 0.05, 0.05, 0.06, 0.05, 0.06, 0.21, 0.04, 0.05, 0.06, 0.31
""",
    "the weights of ship in the Odyssey": """
0.0303, 0.0302, 0.0276, 0.0407, 0.0459, 0.0343, 0.5530, 0.0297, 0.0459,
0.0343, 0.1281
""",
    "the sum weighted by weights of two digits": """
1.0442,  0.0966,  0.3467, -0.4238,  0.2203, -0.0956, -0.9915,  0.6637,
0.4368, -0.7943,  0.5639,  0.9838,  0.0240,  0.5066,  0.0732, -0.1740,
-0.3322,  0.5614, -1.1613, -0.5717,  0.4356,  0.4120, -0.0659, -0.3336,
0.6579, -1.7421, -0.0344,  0.1440,  0.8547, -0.1430,  2.6614, -0.0553,
-0.5376,  0.3057,  0.4068,  0.2231,  0.3959, -0.2940, -0.1163, -0.1340,
0.1709, -0.5332,  0.9552, -0.4178, -0.1058, -0.1715, -0.2251, -0.3923,
0.2098, -0.3625
""",
    "the context of ship in the Odyssey": """
1.0387,  0.1033,  0.3426, -0.4320,  0.2237, -0.0958, -0.9926,  0.6662,
0.4424, -0.7942,  0.5638,  0.9921,  0.0205,  0.5082,  0.0743, -0.1773,
-0.3408,  0.5675,  -1.1545, -0.5718,  0.4288,  0.4191, -0.0658, -0.3339,
0.6682, -1.7473, -0.0485,  0.1531,  0.8642, -0.1447,  2.6571, -0.0545,
-0.5343,  0.3160,  0.4041,  0.2277,  0.3958, -0.2916, -0.1126, -0.1385,
0.1744, -0.5375,  0.9499, -0.4145, -0.1039, -0.1755, -0.2213, -0.3995,
0.2119, -0.3610
""",
    "the weights of the order": """
0.61, 0.06, 0.06, 0.02, 0.20, 0.05
0.17, 0.50, 0.08, 0.03, 0.11, 0.11
0.22, 0.12, 0.30, 0.08, 0.15, 0.13
0.04, 0.03, 0.04, 0.78, 0.05, 0.06
0.14, 0.03, 0.03, 0.02, 0.74, 0.04
0.16, 0.13, 0.10, 0.09, 0.18, 0.34
""",
    "the weights of ship in the order": """
0.0431, 0.0258, 0.0419, 0.7811, 0.0490, 0.0590
""",
    "the context of ship in the order": """
1.2758,  0.1034,  0.2720, -0.4776,  0.1746, -0.1060, -0.9901,  0.6328,
0.6967, -0.8847,  0.7106,  1.2264,  0.2491,  0.5023, -0.1277, -0.2361,
-0.3709,  0.6545, -1.2587, -0.5332,  0.6681,  0.1687, -0.2567, -0.4218,
0.6960, -1.7077, -0.0052,  0.1572,  1.0763,  0.0410,  2.5467, -0.3418,
-0.5414,  0.4175,  0.4147,  0.2666,  0.3770, -0.4228, -0.2462, -0.0377,
0.3202, -0.7298,  1.2020, -0.5636, -0.0899, -0.1845, -0.2390, -0.4307,
0.3828, -0.4905
""",
    "the small matrix, attending to itself": """
0.4519, 0.6852, 0.5481, 1.0000,
0.1045, 1.1609, 0.8955, 1.0000,
0.1387, 1.1034, 0.8613, 1.0000
0.4519, 0.2741, 0.2741,
0.1045, 0.5307, 0.3648,
0.1387, 0.4842, 0.3771
""",
}


def by_module(x: Tensor) -> tuple[Tensor, Tensor]:
    """What a bypassed module makes of a sequence."""
    module = nn.MultiheadAttention(x.size(-1), 1, bias=False, batch_first=True, dtype=x.dtype)
    with bypassed(module):
        context, weights = module(x, x, x)
    return context, weights


def computed(attend: Attend, dtype: torch.dtype) -> dict[str, Tensor]:
    """What the package computes in the same places."""
    vectors = ship_vectors()
    x, order = vectors.lookup(ODYSSEY).to(dtype), vectors.lookup(ORDER).to(dtype)
    cosines, (context, weights), (ordered, order_weights) = cosine_attention(x), attend(x), attend(order)
    return {
        "the embedding of ship": vectors["ship"].to(dtype),
        "the first ten numbers of i": x[0][:10],
        "the cosines of the Odyssey": cosines.weights,
        "the cosines of ship": cosines.weights[6],
        "the sum weighted by cosines of two digits": cosines.weights[6].round(decimals=2) @ x,
        "the sum weighted by the cosines of ship": cosines.context[6],
        "the weights of the Odyssey": weights,
        "the weights of ship in the Odyssey": weights[6],
        "the sum weighted by weights of two digits": weights[6].round(decimals=2) @ x,
        "the context of ship in the Odyssey": context[6],
        "the weights of the order": order_weights,
        "the weights of ship in the order": order_weights[3],
        "the context of ship in the order": ordered[3],
        "the small matrix, attending to itself": torch.cat([each.flatten() for each in attend(SMALL.to(dtype))]),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("attend", [self_attention, by_module])
@pytest.mark.parametrize("block", PRINTED)
def test_the_notebooks_figures_come_out_to_their_printed_digits(block: str, attend: Attend, dtype: torch.dtype) -> None:
    printed = [Decimal(each) for each in re.findall(r"-?\d+\.\d+(?:e[-+]\d+)?", PRINTED[block])]
    found = computed(attend, dtype)[block].flatten().tolist()
    for ours, theirs in zip(found, printed, strict=True):
        unit = 10.0 ** theirs.as_tuple().exponent
        assert ours == pytest.approx(float(theirs), rel=0, abs=0.51 * unit)  # some lie within 1e-6 of an edge
