"""Attributes of a trained estimator for pickles, where each name and array would take tens of bytes."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np

from onnxsgd.persistence.saved_form import check_format
from onnxsgd.persistence.value_tree import TreeReader, TreeWriter, UnknownValueError

__all__ = ["from_small_form", "to_small_form"]

#: The fewest bytes of arrays that stay arrays: memory maps and buffers of pickles hold their numbers.
_LARGE = 1024
#: Entries of the saved form that stay as they are: for the reader of an error message; estimators.
_KEPT = frozenset({"format", "version", "text"})
#: Types of attributes that JSON holds as they are.
_PLAIN = frozenset({bool, int, float, str, type(None)})
#: The dictionary of zlib: what most trees hold. Pickles of this format need it as it is.
_USUAL = b"""\
.components_","transposed"],.mean_",""],.scale_","inverse"]],"coefs_0","intercepts_0","coefs_1","intercepts_
1","velocity",{"array":"first_moment",{"array":"second_moment",{"array":"log_factor",{"array":"average",{"ar
ray":standardised"],onnxsgd.schedules.Constant [('eta0', 0.01)]"onnxsgd.optimizers.SGD velocity raw"onnxsgd.
optimizers.Adamonnxsgd.optimizers.BlockAdam first_moment/second_moment/log_factor standardised"onnxsgd.sched
ules.Auto [('eta0', 0.05)][{"n_updates":,"epoch_updates":,"moments":[["",{"array":"0/0/1"},{"array":"0/0/2"}
,{"array":"0/0/3"}],["X","model":{"bytes":"2"},"score_model":{"bytes":"3"},"score_model":null,"shared":[[],[
]],"link":"identity","own","sigmoid","softmax","weights":["coef","intercept"],"intercepts":["intercept"],"li
near":["coef","intercept"],"linear":null,"classes":{"array":"9"},"classes":null,"exported_for":null,"tensors
":[["coef","weight",{"array":"11/0/2"}],["intercept","weight",{"array":"11/2/2"}],"random_state":["MT19937",
{"array":"12/1"},0,0.0],"eta":0.01,"t":,"l1_total":0.0,"loss_curve":[],"validation_scores":[],"learning_rate
s":[],"owners":{"dict":[["optimizer",["schedule",["n_rows",["mean_weight",1.0]]},"is_trained":true},{"_class
_axis":null,"_follows_lengths":false,"_given":"same","_given_classes":null,"_has_several_labels":false,"_n_o
utputs":1,"_y_is_vector":true,"adapter":null,"alpha":0.0001,"average":false,"batch_norm":null,"batch_size":n
ull,"checkpoint":null,"checkpoint_every":1,"class_weight":null,"classes":null,"device":"cpu","dropout":null,
"dtype":null,"early_stopping":false,"engine":"auto","engine_":"portable","epsilon":0.1,"eta0":null,"gradient
_accumulation_steps":1,"head":null,"l1_ratio":0.15,"learning_rate":"constant","learning_rate":"auto","learni
ng_rate_multipliers":null,"loss":"squared_error","loss":"log_loss","max_grad_norm":null,"max_grad_value":nul
l,"max_iter":1000,"momentum":0.0,"n_features_in_":,"n_iter_":,"n_iter_no_change":5,"n_threads":null,"nestero
v":false,"optimizer":null,"output":null,"penalty":"l2","power_t":0.25,"random_state":0,"record_update_norms"
:false,"shuffle":true,"steps_per_epoch":null,"t_":,"tol":0.001,"trainable":null,"validation_fraction":0.1,"v
erbose":0,"warm_start":false},["classes_"],[],[["2","|u1",[]],["9","<i8",[]],["11/0/2","<f4",[]],["0/0/1","<
f8",[1]],["12/1"]]""".replace(b"\n", b"")


def to_small_form(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes with plain ones, and all but large arrays of ``_saved``, in two strings of bytes.

    ``_saved`` then has the entries::

        tree    compressed JSON: the values of ``_saved``; plain attributes; the names of attributes that are
                its array `classes`; the names, types and shapes of small arrays; the names of large ones
        small   the bytes of small arrays
        large   a list of the large arrays

    and those that have no other form. The attribute `model` stays as it is.
    """
    rest, writer, values, kept = dict(attributes), TreeWriter(), {}, {}
    saved = rest.pop("_saved")
    for number, (name, value) in enumerate(saved.items()):
        try:
            if name in _KEPT:
                raise UnknownValueError
            values[name] = writer.write(value, str(number))
        except UnknownValueError:
            kept[name] = value
    # in one order, whichever attribute was set first: joblib.Memory compares the bytes
    ordered = sorted(rest.items())
    plain = {name: value for name, value in ordered if type(value) in _PLAIN and name != "model"}
    classes = [name for name, value in ordered if value is not None and value is saved["classes"]]
    small = {name: array for name, array in writer.tensors.items() if array.nbytes < _LARGE}
    large = {name: array for name, array in writer.tensors.items() if name not in small}
    table = [[name, array.dtype.str, array.shape] for name, array in small.items()]
    tree = json.dumps([values, plain, classes, table, list(large)], separators=(",", ":"))
    packer = zlib.compressobj(zlib.Z_BEST_COMPRESSION, zdict=_USUAL)
    return {
        **{name: value for name, value in rest.items() if name not in plain and name not in classes},
        "_saved": {
            **kept,
            "tree": packer.compress(tree.encode()) + packer.flush(),
            "small": b"".join(array.tobytes() for array in small.values()),
            # with numpy's own object of each type, which a pickle then has once
            "large": [array.view(array.dtype.str) for array in large.values()],
        },
    }


def from_small_form(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that :func:`to_small_form` was given; those of older versions as they are."""
    if "tree" not in attributes.get("_saved", {}):
        return attributes
    check_format(attributes["_saved"])
    kept = dict(attributes["_saved"])
    tree = zlib.decompressobj(zdict=_USUAL).decompress(kept.pop("tree"))
    values, plain, classes, table, names = json.loads(tree)
    small, tensors, start = kept.pop("small"), dict(zip(names, kept.pop("large"), strict=True)), 0
    for name, dtype, shape in table:
        tensors[name] = np.ndarray(shape, dtype, small, start)
        start += tensors[name].nbytes
    reader = TreeReader(tensors)
    saved = {**kept, **{name: reader.read(tree) for name, tree in values.items()}}
    return {**attributes, **plain, **dict.fromkeys(classes, saved["classes"]), "_saved": saved}
