"""Settings: the environment and the policy file as frozen values, all problems reported at once."""

from __future__ import annotations

from feedsvc.settings.environment import JwtSettings
from feedsvc.settings.load import (
    Part,
    Reading,
    Settings,
    SettingsError,
    check_report,
    load_settings,
    read_settings,
)
from feedsvc.settings.secret import Secret
from feedsvc.settings.variables import variables_table

__all__ = [
    "JwtSettings",
    "Part",
    "Reading",
    "Secret",
    "Settings",
    "SettingsError",
    "check_report",
    "load_settings",
    "read_settings",
    "variables_table",
]
