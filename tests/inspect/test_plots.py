import configparser
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.made_run import MadeRun, ended_run, ppo_row

from hpcrl.errors import DataError, MissingExtraError
from hpcrl.inspect.plots import PANELS, _draw, labels_apart, plot, running_mean


def test_a_plot_is_a_png_of_a_readable_size_and_an_svg_with_every_panel(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = ended_run(tmp_path / "run")
    drawn = plot(made.run)
    assert [*drawn] == ["curves.png", "curves.svg"]
    width, height = struct.unpack(">II", drawn["curves.png"][16:24])
    assert 1200 < width < 2600
    assert 500 < height < 1600
    svg = drawn["curves.svg"].decode()
    measured = {key for step in (0, 1) for key in ppo_row(step)}
    for panel in PANELS:
        assert (f"<!-- {panel.title} -->" in svg) == any(curve.key in measured for curve in panel.curves), panel.title


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.9), (0.62, 0.63), (-1.99, -1.8), (0.5, 3.0)])
def test_an_axis_shows_the_values_and_little_else(low: float, high: float) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    _draw(axes, PANELS[0], [{"step": 1, "rew_inf/reward": low}, {"step": 2, "rew_inf/reward": high}], [])
    bottom, top = axes.get_ylim()
    assert bottom <= low < high <= top
    assert top - bottom < 1.5 * (high - low)


def test_labels_of_changes_that_are_close_are_one() -> None:
    assert labels_apart([(5, 1), (11, 2), (80, 3), (81, 4), (82, 5)], 30) == [(5, "settings 1–2"), (80, "settings 3–5")]
    assert labels_apart([(5, 1), (50, 2)], 30) == [(5, "settings 1"), (50, "settings 2")]


def test_a_run_without_a_step_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(DataError, match="no finished step"):
        plot(MadeRun(tmp_path / "run").run)


def test_without_matplotlib_the_extra_is_named_and_with_it_there_are_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended_run(tmp_path / "run").run
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'hpcrl\[plot\]'"):
            plot(run)
    # What the extra brings.
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    assert "matplotlib" in setup["options.extras_require"]["plot"]
    pytest.importorskip("matplotlib")
    assert all(plot(run).values())


def test_a_running_mean_is_the_mean_of_each_window() -> None:
    values = np.array([1.0, 5.0, 3.0, 7.0, 2.0])
    slow = [values[max(0, i - 1) : i + 2].mean() for i in range(5)]
    assert running_mean(values, 3) == pytest.approx(slow)


def test_reading_a_run_imports_neither_torch_nor_matplotlib() -> None:
    names = ["cause_text", "logs", "plots", "progress", "reader", "terminal"]
    modules = [*names, *(f"views.{view}" for view in ("status", "summary", "steps", "stragglers", "why"))]
    code = f"import sys\nfor m in {modules}: __import__('hpcrl.inspect.' + m)\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "matplotlib", "submitit", "zmq"} & set(loaded)
