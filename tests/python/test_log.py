# SPDX-License-Identifier: Apache-2.0
import logging
import threading

import pytest

from vllm_ir import envs, log


@pytest.fixture
def bare_logger(monkeypatch):
    """Our logger as it is before `configure`, under an application without handlers."""
    for row in envs.TABLE:
        monkeypatch.delenv(row.name, raising=False)
    monkeypatch.setattr(log.logger, "handlers", [])
    level = log.logger.level
    log.logger.setLevel(logging.NOTSET)
    yield log.logger
    log.logger.setLevel(level)


@pytest.fixture(autouse=True)
def forget():
    log.forget_once()
    yield
    log.forget_once()


def without_handlers(monkeypatch):
    # In the body of a test: pytest adds its own handlers after the fixtures have run.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def test_an_application_without_logging_sees_records_on_stderr(bare_logger, capsys, monkeypatch):
    without_handlers(monkeypatch)
    log.configure()
    bare_logger.info("hello")
    assert capsys.readouterr().err == "INFO vllm_ir: hello\n"


def test_configuring_twice_adds_one_handler(bare_logger, capsys, monkeypatch):
    without_handlers(monkeypatch)
    log.configure()
    log.configure()
    bare_logger.info("hello")
    assert capsys.readouterr().err.count("hello") == 1


@pytest.mark.parametrize("order", ["application first", "application later"])
@pytest.mark.parametrize("where", ["", "vllm_ir"])
def test_the_handler_of_the_application_stands_alone(
    bare_logger, capsys, monkeypatch, order, where
):
    without_handlers(monkeypatch)
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    steps = [log.configure, lambda: logging.getLogger(where).addHandler(handler)]
    for step in steps if order == "application later" else reversed(steps):
        step()
    bare_logger.info("hello")
    assert [record.getMessage() for record in records] == ["hello"]
    assert capsys.readouterr().err == ""


def test_the_level_comes_from_the_environment_then_the_application_then_info(
    bare_logger, monkeypatch
):
    log.configure()
    assert bare_logger.level == logging.INFO
    bare_logger.setLevel(logging.ERROR)
    log.configure()
    assert bare_logger.level == logging.ERROR
    monkeypatch.setenv("VLLM_IR_LOGGING_LEVEL", "DEBUG")
    log.configure()
    assert bare_logger.level == logging.DEBUG


def test_a_misspelt_variable_gives_one_notice(bare_logger, monkeypatch, caplog):
    monkeypatch.setenv("VLLM_IR_STRIKT", "1")
    log.configure()
    log.configure()
    assert caplog.messages == [
        "vllm_ir: VLLM_IR_STRIKT has no meaning. Did you mean 'VLLM_IR_STRICT'?"
    ]


def test_records_reach_the_application_s_handlers(caplog):
    log.logger.warning("seen")
    assert caplog.messages == ["seen"]


def test_a_notice_is_given_once_per_key(caplog):
    given = [log.warning_once(key, "no %s", key) for key in ("a", "b", "a")]
    assert given == [True, True, False]
    assert caplog.messages == ["no a", "no b"]
    assert caplog.records[0].filename == "test_log.py"


def test_a_forgotten_notice_is_given_again(caplog):
    for _ in range(2):
        log.warning_once("a", "a")
        log.warning_once("b", "b")
        log.forget_once("a")
    assert caplog.messages == ["a", "b", "a"]


def test_threads_give_a_notice_once(caplog):
    start = threading.Barrier(8)

    def give():
        start.wait()
        for key in range(100):
            log.warning_once(key, "once")

    threads = [threading.Thread(target=give) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caplog.messages) == 100
