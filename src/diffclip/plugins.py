"""Plugins: files and modules of one's own that register attentions, variants, tasks and model sources.

A plugin runs as code, so only a command's `--plugin`, the list `plugins` of a recipe or study that the user names, and
installed packages (entry points of the group `diffclip.plugins`) load one. Weights and run folders never do.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from diffclip.errors import InputError

GROUP = "diffclip.plugins"
_INHERITED = "DIFFCLIP_PLUGINS"
"""The environment variable with the plugins of a command, for the processes that it starts."""
_digests: dict[str, str] = {}  # by name
_loading: set[str] = set()  # sources that were imported or are being imported


def load_plugin(source: str, folder: Path | None = None) -> None:
    """Import the plugin `source`, a file FILE.py (beside `folder`'s files, else by its path) or a module, once.
    `InputError` is raised if it is missing or fails, or if another plugin has its name."""
    file = None
    if source.endswith(".py") or os.sep in source:
        file = folder / source if folder is not None and (folder / source).is_file() else Path(source)
        if not file.is_file():
            raise InputError(f"plugin {source}: there is no such file; give FILE.py or an installed module")
        if file.suffix != ".py":
            raise InputError(f"plugin {source}: the name of a plugin ends with .py; rename the file")
        source = str(file.resolve())
    if source in _loading:
        return
    name = file.name if file is not None else source
    if name in _digests:
        raise InputError(f"plugin {source}: another plugin is called {name}; rename the file")
    _loading.add(source)
    _import(source, file)
    os.environ[_INHERITED] = os.pathsep.join(dict.fromkeys([*plugin_sources(), source]))


def _import(source: str, file: Path | None) -> None:
    try:
        if file is None:
            module = importlib.import_module(source)
        else:
            spec = importlib.util.spec_from_file_location(f"diffclip_plugin_{file.stem}", source)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # so that its classes can be pickled
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        _loading.discard(source)
        if isinstance(error, ModuleNotFoundError) and f"{source}.".startswith(f"{error.name}."):
            raise InputError(
                f"plugin {source}: there is no such module; give FILE.py or an installed module"
            ) from None
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
        position = f"line {frames[-1].lineno}: " if frames else ""
        raise InputError(
            f"plugin {source}: {position}{type(error).__name__}: {' '.join(str(error).split())}"
        ) from None
    origin = module.__file__
    code = Path(origin).read_bytes() if origin else b""
    _digests[file.name if file is not None else source] = hashlib.sha256(code).hexdigest()[:16]


def find_registered(is_known: Callable[[], bool]) -> bool:
    """Tell whether a name is known, if needed after loading the plugins of the parent process and installed ones."""
    if is_known():
        return True
    load_inherited()
    if is_known():
        return True
    for entry in entry_points(group=GROUP):
        load_plugin(entry.module)
        if is_known():
            return True
    return False


def load_inherited() -> None:
    """Load the plugins of the process that started this one."""
    for source in plugin_sources():
        load_plugin(source)


def plugin_sources() -> list[str]:
    """List the plugins of this process and of the one that started it, as `load_plugin` takes them."""
    return [source for source in os.environ.get(_INHERITED, "").split(os.pathsep) if source]


def loaded_plugins() -> dict[str, str]:
    """Return the digest of each loaded plugin's file by the plugin's name."""
    return dict(_digests)


def load_listed(plugins: Iterable[str] | Mapping[str, str], source: Path) -> None:
    """Load the plugins that a recipe or study lists. For the digests in a run's recipe, load nothing, and check that
    these plugins are loaded and have not changed. `InputError` is raised if a plugin cannot be loaded or fails this."""
    if isinstance(plugins, str) or not isinstance(plugins, Iterable):
        raise InputError(f"{source}: plugins {plugins!r} is not a list: write [{plugins}]")
    if not isinstance(plugins, Mapping):
        for plugin in map(str, plugins):
            load_plugin(plugin, source.parent)
        return
    load_inherited()
    for name, digest in plugins.items():
        if name not in _digests:
            raise InputError(f"{source} needs the plugin {name}: give it with --plugin")
        if _digests[name] != digest:
            raise InputError(
                f"the plugin {name} has changed since {source} was written: give the version with the digest {digest}, "
                "or start a new run"
            )
