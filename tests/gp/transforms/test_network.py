"""A network of the inputs as further coordinates."""

from dataclasses import replace

import numpy as np
import pytest

from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.gp.transforms.network import Layer, Network


@pytest.fixture
def network(rng):
    layers = [
        Layer(rng.normal(size=(n, m)), rng.normal(size=m)) for n, m in [(3, 8), (8, 8), (8, 2)]
    ]
    return Network(tuple(layers), slopes=np.ones((3, 2)))


def test_layers_are_those_of_the_definition(network, rng):
    U = rng.normal(size=(7, 3))
    first, second, third = network.layers
    h = np.tanh(U @ first.weights + first.biases)
    h = np.tanh(h @ second.weights + second.biases)
    np.testing.assert_allclose(network(U), h @ third.weights + third.biases, rtol=1e-12)


def test_equal_rows_have_equal_outputs_whatever_stands_beside_them(network, rng):
    U = rng.normal(size=(1500, 3))
    every = network(U)
    for k in (0, 1, 511, 512, 1499):
        assert np.array_equal(network(U[k : k + 1])[0], every[k])
    assert np.array_equal(network(U[::-1]), every[::-1])


def test_a_change_of_units_is_part_of_the_first_layer(network, rng):
    u, centre, scale = rng.normal(size=(5, 3)), rng.normal(size=3), np.array([0.1, 2.0, 30.0])
    of_u = network.after(centre, scale)
    np.testing.assert_allclose(of_u(u), network((u - centre) / scale), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(of_u.slopes, 1.0 / np.column_stack([scale, scale]))


def test_its_outputs_come_after_the_linear_coordinates(network, rng):
    X, metric = rng.normal(size=(5, 4)), rng.normal(size=(4, 3))
    coordinates = replace(Coordinates.identity(4), metric=metric, network=network)
    U = coordinates(X)
    assert U.shape == (5, coordinates.n_coordinates) == (5, 5)
    assert coordinates.is_oblique
    np.testing.assert_allclose(U[:, :3], X @ metric)
    np.testing.assert_allclose(U[:, 3:], network(X @ metric))


def test_rates_of_inputs_count_what_passes_through_the_network():
    layers = (Layer(np.array([[3.0], [0.0]]), np.zeros(1)),)  # linear: three times the first input
    network = Network(layers, slopes=np.array([[3.0], [0.0]]))
    coordinates = replace(Coordinates.identity(2), network=network)
    rates = coordinates.input_rates(np.array([4.0, 5.0, 2.0]), np.array([1.0, 10.0]))
    np.testing.assert_allclose(rates, [np.hypot(4.0, 6.0), 50.0])
