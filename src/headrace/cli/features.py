"""`headrace features`: show and change the feature levels of a cluster."""

import click

from headrace.cli.clients import open_admin
from headrace.cli.options import client_options, examples, key_value, unique
from headrace.cli.output import print_json, print_table

_METADATA_VERSION = "metadata.version"

# Kafka's names of the levels of `metadata.version`.
METADATA_VERSION_NAMES: dict[int, str] = {
    17: "3.7-IV2",
    18: "3.7-IV3",
    19: "3.7-IV4",
    20: "3.8-IV0",
    21: "3.9-IV0",
    22: "4.0-IV0",
    23: "4.0-IV1",
    24: "4.0-IV2",
    25: "4.0-IV3",
    26: "4.1-IV0",
    27: "4.1-IV1",
    28: "4.2-IV0",
    29: "4.2-IV1",
    30: "4.3-IV0",
}


@click.group(short_help="Show and change feature levels.")
def features() -> None:
    """Show and change the feature levels of the cluster."""


@features.command(
    epilog=examples("headrace features describe", "headrace features describe --json")
)
@client_options
def describe(bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Show every feature, its supported levels, and the level of the cluster."""
    with open_admin(bootstrap, timeout_s) as admin:
        found = admin.describe_features()
    if as_json:
        print_json(
            {
                "epoch": found.epoch,
                "features": [
                    {
                        "name": name,
                        "level": feature.level,
                        "min": feature.min_level,
                        "max": feature.max_level,
                    }
                    for name, feature in found.features.items()
                ],
            }
        )
        return
    print_table(
        ["FEATURE", "LEVEL", "MIN", "MAX"],
        [
            (
                name,
                *(
                    _text(name, level)
                    for level in (feature.level, feature.min_level, feature.max_level)
                ),
            )
            for name, feature in found.features.items()
        ],
    )


def _text(feature: str, level: int) -> str:
    name = METADATA_VERSION_NAMES.get(level) if feature == _METADATA_VERSION else None
    return f"{level}" if name is None else f"{level} ({name})"


def _levels(given: tuple[str, ...]) -> dict[str, int]:
    """The levels of `NAME=LEVEL` arguments; `metadata.version` also by Kafka's name of a level."""
    named = {name: level for level, name in METADATA_VERSION_NAMES.items()}
    levels = {}
    for name, text in unique(
        tuple(key_value(argument) for argument in given), "FEATURE=LEVEL"
    ).items():
        if name == _METADATA_VERSION and text in named:
            levels[name] = named[text]
        elif text.isascii() and text.isdigit() and len(text) <= 4:
            levels[name] = int(text)
        else:
            raise click.BadParameter(f"{text!r} is no level of {name}.")
    return levels


_ARGUMENT = click.argument("levels", metavar="FEATURE=LEVEL...", nargs=-1, required=True)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only say whether it could be done.")


def _print_levels(levels: dict[str, int], dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"changed": not dry_run, "features": levels})
        return
    for name, level in levels.items():
        verb = "can be set" if dry_run else "is set"
        click.echo(f"{name} {verb} to {_text(name, level)}")


@features.command(
    epilog=examples(
        "headrace features upgrade transaction.version=2",
        "headrace features upgrade metadata.version=4.3-IV0 --dry-run",
    )
)
@_ARGUMENT
@_DRY_RUN
@client_options
def upgrade(
    levels: tuple[str, ...], dry_run: bool, bootstrap: str, timeout_s: float, as_json: bool
) -> None:
    """Raise features to levels that every broker supports; all of them or none.

    Do it when every broker of the cluster runs the new version: older versions cannot rejoin
    afterwards.
    """
    wanted = _levels(levels)
    with open_admin(bootstrap, timeout_s) as admin:
        admin.update_features(wanted, validate_only=dry_run)
    _print_levels(wanted, dry_run, as_json)


@features.command(
    epilog=examples(
        "headrace features downgrade transaction.version=1",
        "headrace features downgrade transaction.version=0 --dry-run",
    )
)
@_ARGUMENT
@_DRY_RUN
@click.option("--unsafe", is_flag=True, help="Even if metadata is lost, where that is possible.")
@client_options
def downgrade(
    levels: tuple[str, ...],
    dry_run: bool,
    unsafe: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Lower features to levels; all of them or none. A feature at level 0 is off."""
    wanted = _levels(levels)
    with open_admin(bootstrap, timeout_s) as admin:
        admin.update_features(wanted, downgrade=True, unsafe=unsafe, validate_only=dry_run)
    _print_levels(wanted, dry_run, as_json)
