"""The keys of the config classes: name, type, default and meaning, read from the classes themselves.

The meaning of a key is the docstring under its field. Used by `vigneron methods` and by the reference page.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from vigneron.config.values import dotted_path, plain_url

Model = type[BaseModel]
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
FORMATS: dict[Any, str] = {plain_url: "URL", dotted_path: "module:function"}


@dataclass(frozen=True)
class Key:
    name: str
    """With its section, as in `method.kl.coefficient`."""
    type: tuple[str, ...]
    """Alternatives, as in ("int > 0", "auto")."""
    default: str
    meaning: str
    kinds: tuple[Model, ...] = ()
    """For a key whose value is one of several mappings, chosen by `kind`, `name` or `by`: their classes."""


def keys_of(model: Model, prefix: str = "", default: BaseModel | None = None) -> Iterator[Key]:
    """All keys of a class, those of nested classes too, as dotted names.

    `default`: the instance that the defaults are taken from, where the class is itself a default value.
    """
    meanings = field_docs(model)
    for name, field in model.model_fields.items():
        if name == discriminator_of(model):
            continue
        value = getattr(default, name) if default is not None else _default(field)
        models = models_in(field.annotation)
        nested = models[0] if len(models) == 1 else None
        meaning = meanings.get(name) or one_line((nested and nested.__doc__) or "")
        types = tuple(dict.fromkeys(_types(field.annotation, field.metadata)))
        yield Key(prefix + name, types, _text(value), meaning, models if len(models) > 1 else ())
        if nested is not None:
            yield from keys_of(nested, f"{prefix}{name}.", value if isinstance(value, BaseModel) else None)


def discriminator_of(model: Model) -> str | None:
    """The key that says which class of a union this is: `kind`, `name` or `by`."""
    return next((name for name in ("kind", "name", "by") if kind_of(model, name) is not None), None)


def kind_of(model: Model, name: str | None = None) -> str | None:
    """The only value of a class's `kind`, `name` or `by`, as in "grpo"."""
    name = name or discriminator_of(model)
    field = model.model_fields.get(name or "")
    values = get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()
    return str(values[0]) if len(values) == 1 else None


def models_in(annotation: Any) -> tuple[Model, ...]:
    """The config classes of an annotation: none, one, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    if get_origin(annotation) is Annotated:
        return models_in(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(model for part in get_args(annotation) for model in models_in(part))
    return ()


def is_text(model: Model, path: Sequence[str]) -> bool:
    """Whether a key takes text (or null) and nothing else, in every class of its section that has it."""
    models, (*sections, last) = [model], path
    for name in sections:
        fields = [each.model_fields[name] for each in models if name in each.model_fields]
        models = [inner for field in fields for inner in models_in(field.annotation)]
    found = [each.model_fields[last].annotation for each in models if last in each.model_fields]
    return bool(found) and all(set(_leaves(annotation)) in ({str}, {str, NoneType}) for annotation in found)


def _leaves(annotation: Any) -> Iterator[Any]:
    """The types of a union, without what is annotated to them."""
    if get_origin(annotation) is Annotated:
        yield from _leaves(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _leaves(part)
    else:
        yield annotation


def field_docs(model: Model) -> dict[str, str]:
    """The docstring under each field, of the class and of those it inherits from."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            docs |= _own_field_docs(base)
    return docs


def _own_field_docs(model: Model) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, doc in zip(tree.body, tree.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
            docs[field.target.id] = one_line(str(doc.value.value))
    return docs


def one_line(text: str) -> str:
    return " ".join(text.split())


def _default(field: FieldInfo) -> Any:
    return ... if field.is_required() else field.get_default(call_default_factory=True)


def _text(value: Any) -> str:
    """A default as it is written in YAML; `...` is no default."""
    if value is ...:
        return "required"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, BaseModel):  # its keys have their own rows
        return kind_of(type(value)) or ""
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-").replace("e+0", "e")
    return str(value) if value != "" else '""'


def _types(annotation: Any, metadata: Sequence[Any] = ()) -> Iterator[str]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [each for one in arguments[1:] for each in (one.metadata if isinstance(one, FieldInfo) else [one])]
        yield from _types(arguments[0], [*inner, *metadata])
    elif origin in (Union, UnionType):
        for part in arguments:
            yield from _types(part)
    elif origin is Literal:
        yield from map(str, arguments)
    elif origin is list:
        yield f"list of {', '.join(_types(arguments[0]))}"
    elif models_in(annotation):
        yield kind_of(annotation) or "mapping"
    elif annotation is NoneType:
        yield "null"
    else:
        formats = [FORMATS.get(each.func) for each in metadata if isinstance(each, AfterValidator)]
        yield next(filter(None, formats), None) or _bounded(annotation.__name__, metadata)


def _bounded(name: str, metadata: Sequence[Any]) -> str:
    """As in `int > 0` or `0 ≤ float ≤ 1`."""
    bounds = {key: _number(getattr(each, key)) for each in metadata for key in BOUNDS if hasattr(each, key)}
    low = next((key for key in ("gt", "ge") if key in bounds), None)
    high = next((f" {BOUNDS[key]} {bounds[key]}" for key in ("lt", "le") if key in bounds), "")
    if low is None:
        return name + high
    return (
        f"{bounds[low]} {'<' if low == 'gt' else '≤'} {name}{high}" if high else f"{name} {BOUNDS[low]} {bounds[low]}"
    )


def _number(value: Any) -> str:
    return f"2^{value.bit_length() - 1}" if isinstance(value, int) and value >= 2**53 else str(value)
