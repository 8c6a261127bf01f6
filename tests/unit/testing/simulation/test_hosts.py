"""Hosts: clocks of their own, crashes that run nothing more, pauses, exits."""

import asyncio
from typing import Any

import pytest

from headrace.testing.simulation.hosts import Host, Simulation, current_host
from headrace.testing.simulation.simulated_disk import DiskFaults, HostCrashed
from tests.unit.testing.simulation.support import pair, run


def test_hosts_have_their_own_clock_randomness_and_disk() -> None:
    async def main(simulation: Simulation) -> None:
        seen: dict[str, tuple[Any, ...]] = {}

        async def program(host: Host) -> None:
            async def deep() -> None:  # A task inherits the context, and so the host.
                here, loop = current_host(), asyncio.get_running_loop()
                assert here is host
                seen[here.name] = (here.now_ms(), loop.time(), here.rng.random(), id(here.disk))
                assert abs(loop.time() - here.monotonic()) < 1e-9

            await asyncio.create_task(deep())
            await asyncio.Event().wait()

        for name in "abc":
            simulation.host(name, program).start()
        await asyncio.sleep(1)
        assert current_host() is simulation.driver
        assert all(len(set(column)) == 3 for column in zip(*seen.values(), strict=True))

    run(main)


def test_timers_follow_the_clock_of_their_host() -> None:
    async def main(simulation: Simulation) -> None:
        woke: list[float] = []

        async def program(host: Host) -> None:
            await asyncio.sleep(100)
            woke.append(simulation.now)

        fast = simulation.host("fast", program)
        fast.rate = 2.0
        fast.start()
        await asyncio.sleep(200)
        assert 49 < woke[0] < 51

    run(main)


def test_jump_moves_the_time_of_day_alone() -> None:
    async def main(simulation: Simulation) -> None:
        host = simulation.host("a")
        steady, before_ms = host.monotonic(), host.now_ms()
        host.jump_clock(-30)
        assert host.monotonic() == steady
        assert host.now_ms() - before_ms == -30_000

    run(main)


def test_suspended_host_has_only_its_time_of_day_go_on() -> None:
    async def main(simulation: Simulation) -> None:
        woke: list[float] = []

        async def program(host: Host) -> None:
            await asyncio.sleep(10)
            woke.append(simulation.now)

        host = simulation.host("a", program)
        host.start()
        await asyncio.sleep(1)
        steady, before_ms = host.monotonic(), host.now_ms()
        host.suspend(100)
        await asyncio.sleep(100)
        assert host.monotonic() == pytest.approx(steady)
        assert host.now_ms() - before_ms == pytest.approx(100_000, abs=100)
        await asyncio.sleep(20)
        assert woke == [pytest.approx(110, abs=0.1)]

    run(main)


def test_crash_runs_nothing_more_and_restart_is_fresh() -> None:
    log: list[str] = []

    async def main(simulation: Simulation) -> None:
        async def program(host: Host) -> None:
            boot = host.boots
            try:
                while True:
                    await asyncio.sleep(1)
                    log.append(f"{boot} tick")
            finally:
                log.append(f"{boot} finally")  # Not before the end of the simulation.

        host = simulation.host("a", program)
        host.start()
        await asyncio.sleep(2.5)
        host.crash()
        await asyncio.sleep(10)
        assert log == ["1 tick", "1 tick"]
        host.start()
        await asyncio.sleep(1.5)
        assert log == ["1 tick", "1 tick", "2 tick"]
        log.clear()

    run(main)
    assert sorted(log) == ["1 finally", "2 finally"]


def test_pause_delays_callbacks() -> None:
    async def main(simulation: Simulation) -> None:
        ticks: list[float] = []

        async def program(host: Host) -> None:
            while True:
                await asyncio.sleep(0.1)
                ticks.append(simulation.now)

        host = simulation.host("a", program)
        host.start()
        await asyncio.sleep(1)
        before = len(ticks)
        host.pause(5)
        await asyncio.sleep(4.9)
        assert len(ticks) == before
        await asyncio.sleep(1)
        assert len(ticks) > before

    run(main)


def test_program_that_raises_has_exited_and_is_an_error() -> None:
    async def main() -> None:
        async def program(host: Host) -> None:
            raise ValueError("boom")

        host = simulation.host("a", program)
        host.start()
        await asyncio.sleep(1)
        assert host.process is None

    simulation = Simulation(1)
    simulation.run(main())
    assert ["boom" in error for error in simulation.loop.errors] == [True]


def test_signal_runs_the_handler() -> None:
    async def main(simulation: Simulation) -> None:
        async def program(host: Host) -> None:
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(15, stop.set)
            await stop.wait()

        host = simulation.host("a", program)
        host.start()
        await asyncio.sleep(1)
        host.signal(15)
        await asyncio.sleep(1)
        assert host.process is None

    run(main)


@pytest.mark.parametrize("power_loss", [True, False])
def test_peers_hear_of_a_kill_and_not_of_a_power_loss(power_loss: bool) -> None:
    async def main(simulation: Simulation) -> None:
        client, server, _, s = await pair(simulation)
        s.crash(power_loss=power_loss)
        if power_loss:
            await asyncio.sleep(100)
            assert client.log == ["made"]
            client.transport.write(b"x")
            await asyncio.sleep(1)
            s.start()
            assert isinstance(await client.lost, ConnectionResetError)
        else:
            assert not isinstance(await client.lost, TimeoutError)
        assert server.log == ["made"]

    run(main)


def test_power_loss_inside_a_file_operation() -> None:
    async def main(simulation: Simulation) -> None:
        async def program(host: Host) -> None:
            file = host.files.open("/f", create=True)
            try:
                while True:
                    await asyncio.to_thread(file.write_at, 0, b"x")
            except HostCrashed:
                raise AssertionError("whoever waits never learns of it") from None

        host = simulation.host("a", program, DiskFaults(power_loss=0.1))
        host.start()
        await asyncio.sleep(10)
        assert host.process is None and not host.powered

    run(main)


def test_dead_process_cannot_reach_the_disk() -> None:
    async def main(simulation: Simulation) -> None:
        async def program(host: Host) -> None:
            await asyncio.Event().wait()

        host = simulation.host("a", program)
        host.start()
        files = host.files
        file = files.open("/f", create=True)
        host.crash(power_loss=False)
        host.start()
        with pytest.raises(HostCrashed):
            file.write_at(0, b"late")
        with pytest.raises(HostCrashed):
            files.write_atomically("/f", b"late")
        assert host.files.read_bytes("/f") == b""

    run(main)


def test_a_callback_that_takes_seconds_delays_its_own_host_alone() -> None:
    async def main(simulation: Simulation) -> None:
        times: list[tuple[float, float]] = []

        async def busy(host: Host) -> None:
            before = host.monotonic()
            host.take_time(3)
            host.take_time(2)
            times.append((host.monotonic() - before, simulation.now))
            await asyncio.sleep(0)
            times.append((host.monotonic() - before, simulation.now))

        host = simulation.host("h", busy)
        host.start()
        await asyncio.sleep(1)
        assert simulation.now < 1.1
        await asyncio.sleep(6)
        (first, at_first), (second, at_second) = times
        assert first == pytest.approx(5, rel=1e-3)
        assert second == pytest.approx(5, rel=1e-3)
        assert at_first < 0.1
        assert at_second == pytest.approx(5, rel=1e-2)
        assert host.slow_until == pytest.approx(5, rel=1e-2)

    run(main)


def test_a_job_of_a_thread_that_takes_seconds_delays_its_result_alone() -> None:
    async def main(simulation: Simulation) -> None:
        ended: list[float] = []

        async def work(host: Host) -> None:
            loop = asyncio.get_running_loop()
            job = loop.run_in_executor(None, host.take_time, 3)
            await asyncio.sleep(1)
            ended.append(simulation.now)
            await job
            ended.append(simulation.now)

        host = simulation.host("h", work)
        host.start()
        await asyncio.sleep(6)
        assert ended[0] == pytest.approx(1, rel=0.1)
        assert ended[1] == pytest.approx(3, rel=0.2)
        assert host.slow_until == pytest.approx(3, rel=0.2)

    run(main)
