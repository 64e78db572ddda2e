"""What a pod template says about a container of ours. The rest of a template is Kubernetes' business."""

from __future__ import annotations

from typing import Any


def template_command(template: dict[str, Any] | None, *, container: str) -> tuple[str, ...] | None:
    """The command and arguments that replace those of a container; None where the template leaves them alone."""
    for entry in _containers(template):
        if entry.get("name") == container and entry.get("command"):
            return (*entry["command"], *(entry.get("args") or ()))
    return None


def only_commands(template: dict[str, Any] | None, *, container: str) -> bool:
    """Whether the template asks for nothing but another command of this container."""
    if template is None:
        return True
    return (
        template.keys() <= {"spec"}
        and template.get("spec", {}).keys() <= {"containers"}
        and all(
            entry.get("name") == container and entry.keys() <= {"name", "command", "args"}
            for entry in _containers(template)
        )
    )


def _containers(template: dict[str, Any] | None) -> list[dict[str, Any]]:
    containers = ((template or {}).get("spec") or {}).get("containers") or []
    return [entry for entry in containers if isinstance(entry, dict)]
