"""The shop of the demo writes what its guide promises."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pymongo import MongoClient

from feedsvc.adapters.mongo.sample_orders import COLLECTION, TENANTS, SampleError, SampleOrders


def test_orders_come_move_on_and_go_with_images_for_both_tenants(
    mongodb_uri: str, fresh_database: str
) -> None:
    orders = SampleOrders(mongodb_uri, fresh_database, wait_s=10)
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        orders.prepare()
        collection = client[fresh_database][COLLECTION]
        assert collection.options()["changeStreamPreAndPostImages"] == {"enabled": True}
        with collection.watch() as stream:
            for _ in range(120):
                orders.step()
            operations: Counter[str] = Counter()
            while operations.total() < 120:
                change = stream.try_next()
                operations.update([change["operationType"]] if change else [])
        assert operations["insert"] > 20 and operations["delete"] > 0 and operations["update"] > 0
        documents = list(collection.find())
        assert {document["tenantId"] for document in documents} <= set(TENANTS)
        assert all({"status", "total", "cost"} <= document.keys() for document in documents)
        assert len(documents) <= 22
    orders.close()


def test_a_second_start_begins_with_an_empty_shop(mongodb_uri: str, fresh_database: str) -> None:
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        for _ in range(2):
            orders = SampleOrders(mongodb_uri, fresh_database, wait_s=10)
            orders.prepare()
            assert client[fresh_database][COLLECTION].count_documents({}) == 0
            orders.step()
            orders.close()


@pytest.mark.parametrize(
    "uri", ["mongodb://app:hunter22@127.0.0.1:1/", "http://hunter22/", "mongodb://hunter22:/@x:y"]
)
def test_what_fails_says_so_without_the_uri(uri: str) -> None:
    with pytest.raises(SampleError) as failed:  # noqa: PT012 - either may find it
        orders = SampleOrders(uri, "unused", wait_s=0.05)
        try:
            orders.prepare()
        finally:
            orders.close()
    assert "hunter22" not in str(failed.value) and failed.value.__cause__ is None
