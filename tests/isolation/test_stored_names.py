"""The names in rows and messages are looked up in the registry only, never imported."""

import pytest

from django_jobchains.pools import ChildSession, RemoteError, ReusablePool
from django_jobchains.telemetry.child_processes import telemetry_request
from django_jobchains.worker.isolated import child_attempt

HOSTILE = ("os.system", "os:system", "__import__", "builtins.eval", "django_jobchains.pools:send")


@pytest.mark.parametrize("target", [child_attempt.TARGET, child_attempt.RECORD_TARGET])
def test_a_child_process_finds_no_function_by_a_stored_type_name(target):
    request = {"jobs": [], "id": "1", "lease_number": 1, "using": "default", "reports_begin": False}
    with ReusablePool(strict=True) as pool, ChildSession(pool) as child:
        for name in HOSTILE:
            with pytest.raises(RemoteError, match="ProcessorNotFound"):
                child.run(target, {**request, "type_name": name, "telemetry": telemetry_request({})})
