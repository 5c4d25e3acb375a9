"""What is asked: a function with its options, what of an array it needs at once, and the call on a chunk."""

import dataclasses
import inspect

import numpy as np

import fastnorm

_NAMES = (
    *("rms_norm", "layer_norm", "unit_norm", "group_norm", "add_rms_norm", "add_layer_norm"),
    *("softmax", "log_softmax", "logsumexp"),
)
FUNCTIONS = {name: getattr(fastnorm, name) for name in _NAMES}
ARRAYS = ("residual", "weight", "bias")  # what comes from files besides x
NUMBERS = ("num_groups", "eps", "weight_offset", "scale")
SEVERAL_AXES = ("rms_norm", "layer_norm")


def parameters_of(name):
    """The parameters of a function, by name."""
    return inspect.signature(FUNCTIONS[name]).parameters


@dataclasses.dataclass(frozen=True)
class Call:
    """A function, with everything but its arrays. Its axes are negative, which is right with an axis more in front, too."""

    name: str
    axes: tuple
    numbers: dict
    shape: tuple  # of x

    def results(self, arrays):
        """The shapes and dtypes of the results, as arrays that take no memory. Complains of whatever is wrong."""
        # A call on nothing, of which only the axes have a length: group_norm takes room for a whole array of a batch.
        nothing = (slice(0, 0), *(slice(None) if axis in self.axes else slice(0, 0) for axis in range(-len(self.shape), 0)))
        none = {name: array[None][nothing] if name in ("x", "residual") else array for name, array in arrays.items()}
        results = FUNCTIONS[self.name](**none, **self.numbers, axis=self._axis)
        dtypes = [result.dtype for result in (results if isinstance(results, tuple) else (results,))]
        return [np.broadcast_to(np.empty((), dtype), self.place(self.shape)) for dtype in dtypes]

    def least(self):
        """How many indices of each axis must stay together."""
        if self.name != "group_norm":
            return [n if axis in self.axes else 1 for axis, n in zip(range(-len(self.shape), 0), self.shape, strict=True)]
        least = list(self.shape)
        least[0] = 1  # the batch, or else the channels
        least[self.axes[0]] = self._channels_of_a_group
        return least

    def place(self, block):
        """What of a shape, or of a block's slices, the results have."""
        if self.name != "logsumexp":
            return block
        return tuple(cut for axis, cut in zip(range(-len(block), 0), block, strict=True) if axis not in self.axes)

    def on_chunk(self, arrays, block, results):
        """Write the results for a block of x; x and the residual hold no more than that block."""
        if self.name == "logsumexp":
            results[0][...] = fastnorm.logsumexp(**arrays, axis=self._axis)
            return
        numbers = self.numbers
        if self.name == "group_norm" and self._channels_of_a_group:  # some groups, with the weights of their channels
            cut = block[self.axes[0]]
            numbers = numbers | {"num_groups": (cut.stop - cut.start) // self._channels_of_a_group}
            arrays = {name: array if name == "x" else array[cut] for name, array in arrays.items()}
        outputs = dict(zip(("out", "residual_out"), results, strict=False))
        FUNCTIONS[self.name](**arrays, **numbers, axis=self._axis, **outputs)

    @property
    def _axis(self):
        return self.axes if len(self.axes) > 1 else self.axes[0]

    @property
    def _channels_of_a_group(self):
        return self.shape[self.axes[0]] // self.numbers["num_groups"]
