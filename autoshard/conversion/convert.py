"""Convert one folder of weights into another: find out its form, plan the files, check for room, then write
all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from autoshard.checkpoint.manifest import WEIGHTS, Base, of_the_trace
from autoshard.checkpoint.store import MANIFEST
from autoshard.checkpoint.tensor_file import checksum
from autoshard.conversion.dtypes import BY_CONFIG_NAME, CONFIG_NAMES, TABLE, holds
from autoshard.conversion.folder import check_free, check_space, new_folder
from autoshard.conversion.forms import BY_RANK, FORMS
from autoshard.conversion.huggingface import (
    CONFIG,
    SHARD_BYTES,
    carried_files,
    huggingface_files,
    huggingface_source,
    is_huggingface,
)
from autoshard.conversion.nxd import PLAIN, NxdOptions, nxd_files, nxd_folder, nxd_source
from autoshard.conversion.nxd_optimizer import nxd_training_source
from autoshard.conversion.output_file import OutputFile
from autoshard.conversion.peft import ADAPTER_CONFIG, peft_files
from autoshard.conversion.peft_source import peft_source
from autoshard.conversion.plan_checkpoint import checkpoint_files, checkpoint_folder, checkpoint_source, manifest_of
from autoshard.conversion.sample import sampled
from autoshard.conversion.source import Source, key_of
from autoshard.conversion.stream import stream
from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import write_text
from autoshard.files.codec import to_json
from autoshard.files.fields import show
from autoshard.files.first_difference import first_difference
from autoshard.files.reached import reached
from autoshard.models.registry import load_model
from autoshard.models.weights import not_learned, parameter_dtypes, whole_numbers
from autoshard.plans.plan import Plan
from autoshard.spec.model import ModelSpec

_NOT_OF_WEIGHTS = ("name", "router_aux_loss_coef", "dropout", "multi_token_prediction")
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Conversion:
    """The form and the options of the output. Raises AutoshardError for a form that is not known or lacks its plan, and
    for options of another form.

    form: one of FORMS. plan: says what each rank holds; hf and peft need none. dtype: as config.json names it; None
    keeps it. What is not learned, such as the bias of a router's choice, stays FP32 where the dtype is narrower.
    nxd: options of NxD's files. shard_bytes: most bytes of a safetensors file for transformers, unless one tensor is
    larger.
    """

    form: str
    plan: Plan | None = None
    dtype: str | None = None
    nxd: NxdOptions = PLAIN
    shard_bytes: int = SHARD_BYTES

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise AutoshardError(f"to={self.form!r} is not one of: {', '.join(FORMS)}")
        if self.form in BY_RANK and self.plan is None:
            raise AutoshardError(f"to={self.form} needs a plan: it says how many ranks there are and what each holds")
        if not self.is_nxd and self.nxd != PLAIN:
            name = next(name for name, value in asdict(self.nxd).items() if value != getattr(PLAIN, name))
            raise AutoshardError(
                f"{name}={getattr(self.nxd, name)} is of NxD's files, and to={self.form} writes others: give to=nxd, "
                "or leave it out"
            )
        if self.dtype is not None and self.dtype not in CONFIG_NAMES.values():
            raise AutoshardError(f"dtype={self.dtype!r} is not one of: {', '.join(BY_CONFIG_NAME)}")

    @property
    def is_nxd(self) -> bool:
        """Whether NxD's files are written."""
        return self.form == "nxd"


@dataclass(frozen=True)
class Written:
    """The result of a conversion. bytes: of all files. step: of the optimizer's state; None: weights alone."""

    model: str
    files: int
    bytes: int
    step: int | None = None


def open_source(
    folder: Path,
    model: ModelSpec | str | None = None,
    share: tuple[int, int] = (0, 1),
    training: bool = False,
    adapter: Path | None = None,
    alone: bool = False,
) -> Source:
    """The weights in a folder of any form that can be read.

    model: of NxD's files, which may not say theirs, and of a traced module's; a plan's is ignored where the files say
    it, a name is refused.
    training: whether NxD's optimizer state is read, too.
    adapter: a folder with adapters that stand beside the weights, of PEFT or a checkpoint. alone: whether of a
    checkpoint that holds adapters alone the weights beside them are left out.
    share: (i, n) compares every n-th file of a checkpoint with its checksum, from the i-th on; other processes do the
    rest.
    Raises AutoshardError for a folder that has none of the forms, for adapters of PEFT that are not asked for, for
    weights beside adapters that are gone or changed, and for a model's name beside files that say theirs.
    """
    if isinstance(model, ModelSpec):
        model = model.without_adapters  # where files do not say their model, they have no adapters
    source = _weights_in(folder, model, share, training, adapter)
    if adapter is not None:
        return _with_adapter(source, adapter, share)
    if source.base is None or alone:
        return source
    return weights_beside(source.base, source.model, source.form, share=share).with_adapters_of(source)


def weights_beside(
    base: Base, model: ModelSpec, of: str, folder: Path | None = None, share: tuple[int, int] = (0, 1)
) -> Source:
    """The weights that a checkpoint's adapters stand beside.

    model: the checkpoint's. of: names it in errors. folder: where the weights are now; None: where they were. share: as
    of `open_source`.
    Raises AutoshardError where they are gone, or others.
    """
    try:
        source = open_source(Path(base.folder) if folder is None else folder, model, share).without_adapters
        _check_model(source, model, of)
        found = sampled(source.files)
    except AutoshardError as error:
        raise _not_beside(of, str(error)) from None
    if found != base.files:
        raise _not_beside(of, f"{source.form} has {found}, and they had {base.files}")
    return source


def _not_beside(of: str, why: str) -> AutoshardError:
    """What is said where the weights beside the adapters of a checkpoint are not found. of: names it."""
    return AutoshardError(
        f"{of} holds adapters alone, and the weights that they stand beside are gone or changed: {why}; run --weights "
        "FOLDER, or convert FOLDER with the checkpoint as adapter, says where they are now"
    )


def _with_adapter(source: Source, adapter: Path, share: tuple[int, int]) -> Source:
    """Weights with adapters of another folder, of PEFT or a checkpoint. share: as of `open_source`."""
    if source.model.lora is not None:
        raise AutoshardError(f"{source.form} has adapters, and adapter={adapter} brings others: give one of them")
    with reached(f"adapter={adapter}"):
        if not adapter.is_dir():
            raise AutoshardError(f"adapter={adapter} is not a folder: give that of PEFT, or a checkpoint")
        if (folder := checkpoint_folder(adapter)) is None:
            if not (adapter / ADAPTER_CONFIG).is_file():
                raise AutoshardError(f"adapter={adapter} has neither {ADAPTER_CONFIG} of PEFT nor a checkpoint")
            return peft_source(source, adapter)
        other = checkpoint_source(folder, share)
    if other.model.lora is None:
        raise AutoshardError(f"adapter={adapter}: {other.form} has no adapters")
    if other.base is not None and (found := sampled(source.files)) != other.base.files:
        raise _not_beside(other.form, f"{source.form} has {found}, and they had {other.base.files}")
    _check_model(source, other.model, other.form)
    return replace(source.with_adapters_of(other), form=f"{source.form} with the adapters of {other.form}")


def _check_model(source: Source, model: ModelSpec, of: str) -> None:
    """Raises AutoshardError where weights are not of the model that a checkpoint's adapters were trained for. of: names
    that one."""
    apart = first_difference(to_json(source.model), to_json(model), (*_NOT_OF_WEIGHTS, "lora", *of_the_trace(model)))
    if apart is not None:
        raise AutoshardError(f"{source.form} is of another model than the plan of {of}: {apart}")


def _weights_in(
    folder: Path, model: ModelSpec | str | None, share: tuple[int, int], training: bool, adapter: Path | None
) -> Source:
    """The weights in a folder, as `open_source`, without the adapters that are to stand beside them."""
    with reached(str(folder)):
        if not folder.is_dir():
            raise AutoshardError(f"{folder} is not a folder with weights")
        if (weights_folder := checkpoint_folder(folder)) is not None:
            return _says_its_model(checkpoint_source(weights_folder, share), model)
        if (weights_folder := nxd_folder(folder)) is not None:
            read = nxd_training_source if training else nxd_source
            return read(weights_folder, _model(weights_folder, model))
        has_adapters = (folder / ADAPTER_CONFIG).is_file()  # transformers would load them over the weights
        if has_adapters and (adapter is None or not adapter.exists() or not folder.samefile(adapter)):
            raise AutoshardError(
                f"{folder} has adapters of PEFT ({ADAPTER_CONFIG}): give the weights of the model that they stand "
                f"beside, and adapter={folder}"
            )
        if is_huggingface(folder):
            traced = model if isinstance(model, ModelSpec) and model.graph is not None else None
            return _says_its_model(huggingface_source(folder, traced), model)
        listed = ", ".join(sorted(path.name for path in folder.iterdir())[:5])
        holds = f"it has {show(listed)}" if listed else "it is empty"
    raise AutoshardError(
        f"{folder} has no weights that are read: neither model.safetensors (or its index), nor {MANIFEST} of a "
        f"checkpoint, nor NxD's model/dp_rank_00_tp_rank_00_pp_rank_00.pt; {holds}"
    )


def _says_its_model(source: Source, model: ModelSpec | str | None) -> Source:
    """The source, whose files say its model. Raises AutoshardError where `model` is a name: it would be ignored."""
    if isinstance(model, str):
        raise AutoshardError(
            f"model={show(model)} is for NxD's files, which do not say their model; {source.form} does: leave it out"
        )
    return source


def convert(source: Source, target: Path, conversion: Conversion, starting: Advance, advance: Advance) -> Written:
    """Write the source's weights into the folder `target` in the form of `conversion`.

    starting: is called with the bytes of weights to come. advance: is called with the bytes done since its last call.
    Raises AutoshardError, and leaves nothing behind, when anything is wrong.
    """
    check_free(target)
    assert source.base is None or conversion.form == "peft", f"weights beside {source.form} are to be opened, too"
    if conversion.plan is not None:
        source = source_for(source, conversion.plan)
    if (conversion.form == "hf" or conversion.is_nxd) and source.model.lora is not None:
        source = source.merged
    if conversion.form == "peft" and source.model.lora is None:
        raise AutoshardError(
            f"{source.form} has no adapters, which alone to=peft writes: a plan made with --lora trains some"
        )
    dtype = _dtype(source, conversion)
    dtypes = dict(source.dtypes) if dtype is None else _dtypes(source, dtype)
    if conversion.form == "hf":
        dtypes |= dict.fromkeys(whole_numbers(source.model), TABLE)
    files = _files(source, dtypes, conversion)
    check_space(target, sum(file.size for file in files))
    written = source.shapes.keys() & {name for file in files for name in file.parameters}
    starting(sum(region.box.elements * region.width for name in written for region in source.regions[name]))
    with new_folder(target) as folder:
        sha256 = stream(source, dtypes, files, folder, advance)
        if conversion.form == "plan":
            assert conversion.plan is not None and dtype is not None
            sha256 |= {file.path: checksum(folder / file.path) for file in files if not file.sha256}
            manifest = manifest_of(conversion.plan, dtype, files, sha256, source)
            write_text(folder / MANIFEST, manifest.to_json(), "manifest")
    sizes = [file.size for file in files]
    step = None if source.quantities == WEIGHTS else source.step
    return Written(source.model.name, len(files), sum(sizes), step)


def _files(source: Source, dtypes: Mapping[str, str], conversion: Conversion) -> list[OutputFile]:
    config_says = None if conversion.dtype is None else BY_CONFIG_NAME[conversion.dtype]
    carried = carried_files(source.model, source.carried, config_says)
    if conversion.form == "hf":
        return [*huggingface_files(source.model, dtypes, conversion.shard_bytes), *carried]
    if conversion.form == "peft":
        return [*peft_files(source.model, dtypes), *(one for one in carried if one.path.name != CONFIG)]
    assert conversion.plan is not None
    if conversion.is_nxd:
        return [*nxd_files(conversion.plan, dtypes, conversion.nxd), *carried]
    return checkpoint_files(conversion.plan, dtypes, tuple(carried), source.quantities)


def _dtype(source: Source, conversion: Conversion) -> str | None:
    """The dtype of all that is learned; None: each parameter keeps its own."""
    if conversion.dtype is not None:
        return BY_CONFIG_NAME[conversion.dtype]
    if source.quantities != WEIGHTS and conversion.plan is not None:  # as the plan's run saves it
        return BY_CONFIG_NAME[conversion.plan.training.precision.kept_dtype]
    if conversion.form != "plan":
        return None
    names = source.shapes.keys() - not_learned(source.model)
    several = sorted({source.dtypes[name] for name in names} | _not_held(source, names))
    if len(several) > 1:
        told = ", ".join(CONFIG_NAMES[dtype] for dtype in several)
        raise AutoshardError(
            f"{source.form} has weights of several dtypes ({told}), a plan has one: give it with --dtype"
        )
    return several[0]


def _not_held(source: Source, learned: Collection[str]) -> set[str]:
    """Dtypes of weights beside adapters that would lose digits in the adapters' dtype. learned: names of these."""
    if source.model.lora is None:
        return set()
    return {
        source.dtypes[name]
        for dtype in {source.dtypes[one] for one in learned}
        for name, kept in parameter_dtypes(source.model, dtype).items()
        if name in source.shapes and not holds(kept, source.dtypes[name])
    }


def _dtypes(source: Source, dtype: str) -> dict[str, str]:
    by_name = parameter_dtypes(source.model, dtype)
    return {key_of(quantity, name): by_name[name] for quantity in source.quantities for name in by_name}


def _model(folder: Path, given: ModelSpec | str | None) -> ModelSpec:
    """The model of a folder of NxD's files, which do not say it: `given`, or a config.json in or beside the folder.

    Raises AutoshardError where there is neither.
    """
    if isinstance(given, ModelSpec):
        return given
    if given is not None:
        return load_model(given)
    for beside in (folder, folder.parent):
        if (beside / "config.json").is_file():
            return load_model(str(beside / "config.json"))
    raise AutoshardError(
        f"{folder} does not say which model it is of: give --plan, --model, or a config.json beside it"
    )


def source_for(source: Source, plan: Plan) -> Source:
    """The weights that a plan's model has: without those of a prediction module where the plan trains none, with what
    adapters add where the plan has none; without adapters too where the plan begins with new ones.

    Raises AutoshardError naming a field in which their model is not the plan's; its name and losses may differ, and of
    a traced module the tokens of the trace.
    """
    if plan.model.lora is None and source.model.lora is not None:
        source = source.merged
    begins = ("lora",) if source.model.lora is None else ()
    may_differ = (*_NOT_OF_WEIGHTS, *begins, *of_the_trace(plan.model))
    if (apart := first_difference(to_json(source.model), to_json(plan.model), may_differ)) is not None:
        others = f": a plan with --lora {source.model.lora} has these" if apart.startswith("lora.") else ""
        raise AutoshardError(f"{source.form} is of another model than the plan: {apart}{others}")
    here, there = source.model.multi_token_prediction, plan.model.multi_token_prediction
    if there is not None and here is None:
        raise AutoshardError(
            f"{source.form} has no prediction module, and the plan trains one (mtp_num_layers={there.mtp_num_layers}): "
            "plan without it, or give weights that have it"
        )
    return source if there is not None else source.without_prediction
