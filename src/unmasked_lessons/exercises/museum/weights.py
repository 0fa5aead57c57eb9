"""The exercises of the museum's room of weights."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from unmasked_doctor.probes import differs
from unmasked_lessons.exercises._check import Wrong, draw, exercise, tensor
from unmasked_lessons.exercises.pytorch.from_scratch import of_weights

_X = draw((2, 5, 12), seed=9, dtype=torch.float32)[0]


def _module() -> nn.MultiheadAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        return nn.MultiheadAttention(12, 3, batch_first=True)


@exercise("weights-that-tell", "On a module that is filled so, every mistake with the weights shows.")
def _weights_that_tell(answer: Callable[[nn.MultiheadAttention], object]) -> None:
    module = _module()
    shapes = [parameter.shape for parameter in module.parameters()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        filled = answer(module)
    module = filled if isinstance(filled, nn.MultiheadAttention) else module
    if [parameter.shape for parameter in module.parameters()] != shapes:
        raise Wrong("The shapes of the parameters have changed; fill them where they are.")
    with torch.no_grad():
        expected = module.train(False)(_X, _X, _X)[0]
        if not expected.isfinite().all():
            raise Wrong("The module's output is not finite: fill it with numbers of ordinary size.")
        for mistake, mistaken in of_weights((_X, _X, _X), module.state_dict()).items():
            if not differs(mistaken, expected):
                raise Wrong(f"On the filled module this mistake gives the right numbers: {mistake}")


@exercise("mend-the-class", "The class gives PyTorch's numbers, with PyTorch's weights.")
def _mend_the_class(answer: Callable[[nn.MultiheadAttention], Callable[[Tensor], Tensor]]) -> None:
    module = _module()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=12**-0.5)
    copied = answer(module)
    result = tensor(copied(_X), f"For an input {tuple(_X.shape)}", _X)
    with torch.no_grad():
        expected = module(_X, _X, _X)[0]
        if gap := differs(result, expected):
            for mistake, mistaken in of_weights((_X, _X, _X), module.state_dict()).items():
                if not differs(result, mistaken):
                    raise Wrong(f"Off by up to {gap:.2f}. One mistake is left: {mistake}")
            raise Wrong(f"Off by up to {gap:.2f} from PyTorch's output, and by more than one mistake.")
        for parameter in module.parameters():
            parameter.add_(1.0)
        if differs(copied(_X), expected):
            raise Wrong("It was right, until the module that it copied was trained.", "aliased-weights")
