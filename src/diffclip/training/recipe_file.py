"""Recipe files: find them by path or name, merge them over their `base`, and apply `key=value` changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from diffclip.errors import InputError, explain, near_path, unknown_name

Parsed = TypeVar("Parsed", bound=BaseModel)
# prefixes of the built-in recipes that are not for `diffclip train`
_PREFIXES = ("study_", "vlm_")
_PACKAGE = Path(__file__).parents[1]
_EXPERIMENTS = _PACKAGE.parents[1] / "experiments"


class Keys(BaseModel):
    """A recipe or a part of one. Unknown keys and numbers that are not finite are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    def to_yaml(self) -> str:
        """Return YAML with every key, as in a recipe file."""
        fields = self.model_dump(mode="json", by_alias=True)
        return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def parse(kind: type[Parsed], fields: Any, source: object, noun: str, changes: Iterable[str] = ()) -> Parsed:
    """Check `fields` and make a recipe of this kind, which messages call `noun`.

    `InputError` is raised for an unknown key (the nearest one is offered) or a wrong value. The message names the file
    `source`, or the word of `changes` (applied `key=value` words) that is at fault.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        for fault in error.errors():
            if fault["type"] == "extra_forbidden":
                key, keys = ".".join(map(str, fault["loc"])), _list_keys(kind)
                beside = [name for name in keys if name.rpartition(".")[0] == key.rpartition(".")[0]]
                advice = f"choose from: {', '.join(beside or keys)}"
                raise unknown_name(f"{noun} key", key, keys, advice) from None
        key = ".".join(map(str, error.errors()[0]["loc"]))
        words = {change.partition("=")[0]: change for change in changes}
        changed_key = next((name for name in words if f"{key}.".startswith(f"{name}.")), None)
        blamed = source if changed_key is None else words[changed_key]
        raise InputError(f"{blamed}: {explain(error, known=changed_key)}") from None


def _list_keys(kind: type[BaseModel]) -> list[str]:
    """List the keys of a model, and as `KEY.INNER` or `KEY.NAME.INNER` those of the models that are its values."""
    names = []
    for name, field in kind.model_fields.items():
        names.append(field.alias or name)
        outer = f"{names[-1]}.NAME" if get_origin(field.annotation) is dict else names[-1]
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                names += [f"{outer}.{key}" for key in _list_keys(inner)]
    return names


def find_recipe(source: str | Path, prefix: str = "") -> Path:
    """Find the file of `source`: a path, or the name of a recipe that comes with the package. If there is none,
    `InputError` offers the nearest name that begins with `prefix` ("study_", "vlm_"; "": names with neither)."""
    path = Path(source)
    if path.is_file():
        return path
    names = {file.stem: file for folder in recipe_folders() for file in sorted(folder.glob("**/*.yaml"))}
    # in a checkout, the spec of a study stands beside its results
    names |= {file.parent.name: file for file in _EXPERIMENTS.glob("study_*/spec.yaml")}
    if path.stem in names and path.suffix in ("", ".yaml") and path.parent in (Path("."), Path("recipes")):
        return names[path.stem]
    if path.is_dir():
        raise InputError(f"{source} is a folder: give a YAML file, or the name of a recipe or study")
    near = near_path(path if path.suffix else path.with_suffix(".yaml"))
    if near and near.endswith((".yaml", ".yml")):
        raise InputError(f"{source} does not exist: did you mean {near!r}?")
    excluded = tuple(other for other in _PREFIXES if other != prefix)
    offered = [name for name in names if name.startswith(prefix) and not name.startswith(excluded)]
    raise unknown_name("study" if prefix == "study_" else "recipe", source, offered)


def recipe_folders() -> list[Path]:
    """List the folders of recipes: in an installed package, or beside the sources."""
    return [folder for folder in (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes") if folder.is_dir()]


def recipe_fields(path: Path, changes: Iterable[str] = (), chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read the fields of the recipe in the file `path`, merged over its `base` and with `key=value` changes, unchecked.

    A base is a file beside the recipe, or the name of a recipe. `InputError` is raised for a file that is not YAML, a
    base that is missing or leads back to the recipe (`chain` has the recipes above it), and a word that is no change.
    """
    fields = read_fields(path)
    if (base := fields.pop("base", None)) is not None:
        base_path = path.parent / str(base)
        base_path = base_path if base_path.is_file() else find_recipe(str(base))
        chain = (*chain, path)
        if any(base_path.samefile(recipe) for recipe in chain):
            raise InputError(f"{base_path} is its own base: rename it, or give another base")
        fields = _merge(recipe_fields(base_path, chain=chain), fields)
    for change in changes:
        _apply(fields, change)
    return fields


class _KeysOnce(yaml.SafeLoader):
    """Refuse a mapping that has a key twice: PyYAML silently takes the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"the key {key} stands twice: leave one out")
        return super().construct_mapping(node, deep)


def read_fields(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file, or raise `InputError`."""
    try:
        fields = yaml.load(path.read_text(encoding="utf-8"), _KeysOnce)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check its permissions") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that does not exist
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise InputError(f"{path} is neither a recipe nor a spec: it must map keys, such as model, to values")
    return fields


def _merge(fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge `changes` over `fields`, key by key if both values have inner keys."""
    merged = dict(fields)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _apply(fields: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise InputError(f"{change!r} is not a change to a recipe: write key=value, for example epochs=3")
    try:
        value = json.loads(text) if text[:1] == '"' else yaml.safe_load(text)
        if isinstance(value, str) and text.strip().startswith(f"{value} "):
            value = text.strip()  # YAML would drop what follows " #" as a comment
    except (yaml.YAMLError, ValueError):
        value = text
    *outer, last = key.split(".")
    for part in outer:
        if fields.get(part) is None:
            fields[part] = {}
        if not isinstance(fields[part], dict):
            raise InputError(
                f"{change!r}: {part} is {fields[part]!r} and has no inner keys: change {part} itself"
            )
        fields = fields[part]
    fields[last] = value
