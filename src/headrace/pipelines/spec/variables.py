"""`${NAME}` and `${NAME:-default}` in the text of a pipeline file. Pure.

`$${` stands for `${` itself.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?P<escaped>\$)?\{(?P<body>[^{}]*)\}")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)


class UnsetVariable(ValueError):
    """A variable that has no value and no default; `position` is where it stands in the text."""

    def __init__(self, text: str, position: int) -> None:
        super().__init__(text)
        self.position = position


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """The text with every reference replaced. What is put in is not looked at again."""

    def value(reference: re.Match[str]) -> str:
        if reference["escaped"]:
            return reference[0][1:]
        body = _BODY.fullmatch(reference["body"])
        if body is None:
            raise UnsetVariable(
                f"{reference[0]} is not the name of a variable: write ${{NAME}} or"
                " ${NAME:-default}, or $${ for the characters themselves",
                reference.start(),
            )
        name, default = body["name"], body["default"]
        # As in a shell, an empty variable has its default too.
        found = variables.get(name)
        if default is not None:
            return found or default[2:]
        if found is None:
            raise UnsetVariable(
                f"the environment variable {name} is not set:"
                f" set it, or write ${{{name}:-default}}",
                reference.start(),
            )
        return found

    return _REFERENCE.sub(value, text) if "${" in text else text
