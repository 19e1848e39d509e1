"""What reversing the migrations does with the rows."""

from django.db import connection

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from tests.shop.models import Effect


def test_migrating_to_zero_deletes_all_chains_and_keeps_the_tables_of_other_apps(migrate, processors):
    """They are dropped without a question, as for each Django app. The first migration can then be applied again."""

    @processors.register("work.wait")
    def wait(job):
        pass

    wait.enqueue()
    effect = Effect.objects.create(job_id=chains.enqueue("work.wait").id, label="of the shop")
    migrate("zero")
    assert not [name for name in connection.introspection.table_names(include_views=True) if "jobchains" in name]
    assert Effect.objects.get().pk == effect.pk
    migrate()
    assert not Job.objects.exists()
    assert not Chain.objects.exists()
    assert wait.enqueue().refresh().status == "pending"


def test_the_last_migration_can_be_reversed_and_applied_again_with_rows(migrate, processors):
    @processors.register("work.wait")
    def wait(job):
        pass

    chain = wait.enqueue()
    migrate("0001")
    assert chain.refresh().status == "pending"
    migrate()
    assert chain.refresh().status == "pending"
