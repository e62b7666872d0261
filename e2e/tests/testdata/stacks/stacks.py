"""Has pools and frameworks, with their defaults, execute a statement each at the same time, for each line that it reads.

For each it prints what it has read, its name, the number of errors before the answer, and the first error.
"""
import asyncio
import concurrent.futures
import os
import sys
import threading

import asyncpg
import django.conf
import django.core.signals
import django.db
import psycopg_pool
import sqlalchemy

host, password = sys.argv[1], os.environ["PGPASSWORD"]
timeout, tries = int(os.environ["TIMEOUT"]), int(os.environ["TRIES"])
SELECT = "select 1"


def pooled(**settings):
    made = []

    def ask():
        if not made:
            made.append(psycopg_pool.ConnectionPool(f"host={host} user=app dbname=app", open=True, timeout=timeout, **settings))
        with made[0].connection() as connection:
            connection.execute(SELECT)

    return ask


def engine(**settings):
    made = sqlalchemy.create_engine(f"postgresql+psycopg://app:{password}@{host}/app", **settings)

    def ask():
        with made.connect() as connection:
            connection.execute(sqlalchemy.text(SELECT))

    return ask


def request(database):
    def ask():
        django.core.signals.request_started.send(None)
        try:
            with django.db.connections[database].cursor() as cursor:
                cursor.execute(SELECT)
        finally:
            django.core.signals.request_finished.send(None)

    return ask


def asynchronous():
    loop, made = asyncio.new_event_loop(), []
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def ask():
        if not made:
            made.append(await asyncpg.create_pool(host=host, user="app", database="app", password=password, timeout=timeout))
        await made[0].execute(SELECT)

    return lambda: asyncio.run_coroutine_threadsafe(ask(), loop).result()


common = {"ENGINE": "django.db.backends.postgresql", "HOST": host, "USER": "app", "NAME": "app", "PASSWORD": password, "CONN_MAX_AGE": None}
django.conf.settings.configure(DATABASES={"default": common, "checked": common | {"CONN_HEALTH_CHECKS": True}})

stacks = {
    "psycopg_pool": pooled(),
    "psycopg_pool with check": pooled(check=psycopg_pool.ConnectionPool.check_connection),
    "SQLAlchemy": engine(),
    "SQLAlchemy with pool_pre_ping": engine(pool_pre_ping=True),
    "Django with CONN_MAX_AGE": request("default"),
    "Django with CONN_HEALTH_CHECKS": request("checked"),
    "asyncpg": asynchronous(),
}
threads = {name: concurrent.futures.ThreadPoolExecutor(1) for name in stacks}  # each keeps its own: Django's connections belong to threads


def use(ask):
    errors = []
    while len(errors) < tries:
        try:
            ask()
            break
        except Exception as error:  # whatever an application would get
            errors.append(" ".join(str(error).split()))
    return f"{len(errors)}\t{''.join(errors[:1])}"


for line in sys.stdin:
    answers = {name: threads[name].submit(use, ask) for name, ask in stacks.items()}
    for name, answer in answers.items():
        print(line.strip(), name, answer.result(), sep="\t")
    print(line.strip(), "end", sep="\t", flush=True)
