"""From files that frameworks and launchers already have to the content of a plan file, so that nobody writes a second one.

One file per source: each reads what it finds into `Facts`, with its origin; `resolve` fills in what the framework itself would; `merge`
puts the files together and refuses contradictions. Nothing is ever executed, and no value is guessed: what is not said stays out.
"""

from preflight.plan.importers.facts import Imported
from preflight.plan.importers.merge import NOT_GIVEN, import_files
from preflight.plan.importers.planwrite import plan_toml

__all__ = ["NOT_GIVEN", "Imported", "import_files", "plan_toml"]
