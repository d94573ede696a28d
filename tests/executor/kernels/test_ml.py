"""The operators of ai.onnx.ml, through sessions, against onnxruntime where it follows the specification."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from single_node import assert_same

from ortconv.errors import OrtconvError
from ortconv.runtime.session import Session
from tests import unoptimized
from tests.batches import batched

ML = "ai.onnx.ml"
F32 = np.float32
RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 3)).astype(F32)
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _type(x):
    if isinstance(x, dict):
        key, value = next(iter(x.items()))
        value_type = TensorProto.STRING if isinstance(value, str) else TensorProto.FLOAT
        if isinstance(value, int):
            value_type = TensorProto.INT64
        proto = onnx.TypeProto()
        proto.map_type.key_type = TensorProto.STRING if isinstance(key, str) else TensorProto.INT64
        proto.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(value_type, []))
        return proto
    element = TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    return helper.make_tensor_type_proto(element, x.shape)


def model_of(op, inputs, attributes, version=1, n_outputs=1):
    fields = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
    names = [f"x{i}" for i in range(len(inputs))]
    outputs = [f"y{i}" for i in range(n_outputs)]
    node = helper.make_node(op, names, outputs, domain=ML, **fields)
    graph = helper.make_graph(
        [node],
        op,
        [helper.make_value_info(n, _type(x)) for n, x in zip(names, inputs)],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), dict(zip(names, inputs))


def run(tmp_path, op, inputs, attributes, version=1, n_outputs=1):
    model, feeds = model_of(op, inputs, attributes, version, n_outputs)
    onnx.save(model, tmp_path / "model.onnx")
    return Session(tmp_path / "model.onnx").run(None, feeds)


def compare(tmp_path, op, inputs, attributes, version=1, n_outputs=1, **tolerance):
    got = run(tmp_path, op, inputs, attributes, version, n_outputs)
    model, feeds = model_of(op, inputs, attributes, version, n_outputs)
    assert_same(got, unoptimized.run(model, feeds), **tolerance)


def text(*values):
    return np.array(values, object)


FEATURES = [
    ("ArrayFeatureExtractor", [X, np.array([[2, 0, 2]])], {}),
    ("ArrayFeatureExtractor", [X[0], np.array([1])], {}),
    ("ArrayFeatureExtractor", [X.reshape(5, 1, 3), np.array([1, 2])], {}),
    ("ArrayFeatureExtractor", [text("a", "b", "c"), np.array([1, 1, 0])], {}),
    ("Binarizer", [X], {"threshold": 0.25}),
    ("Binarizer", [X], {}),
    ("FeatureVectorizer", [X, X[:, :2]], {"inputdimensions": [3, 2]}),
    ("FeatureVectorizer", [X, X[:, :2]], {"inputdimensions": [2, 4]}),
    ("FeatureVectorizer", [X[0], X[1]], {"inputdimensions": [3, 3]}),
    ("FeatureVectorizer", [np.arange(6).reshape(2, 3)], {"inputdimensions": [3]}),
    ("Imputer", [X.round()], {"imputed_value_floats": [7.0], "replaced_value_float": 0.0}),
    ("Imputer", [X.round()], {"imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": -1.0}),
    ("Imputer", [np.where(X > 0.5, np.nan, X)], {"imputed_value_floats": [7.0], "replaced_value_float": float("nan")}),
    ("Imputer", [np.arange(6).reshape(2, 3)], {"imputed_value_int64s": [-1], "replaced_value_int64": 4}),
    ("Scaler", [X], {"offset": [0.5], "scale": [2.0]}),
    ("Scaler", [X], {"offset": [0.5, 1.0, -1.0], "scale": [2.0, 3.0, 0.5]}),
    ("Scaler", [X.astype(np.float64)], {"offset": [0.1], "scale": [3.0]}),
    ("Scaler", [np.arange(6).reshape(2, 3)], {"offset": [0.1], "scale": [3.0]}),
    ("OneHotEncoder", [np.array([[1, 2], [3, 9]])], {"cats_int64s": [1, 2, 3]}),
    ("OneHotEncoder", [np.array([1.7, 2, 3], F32)], {"cats_int64s": [1, 2, 3], "zeros": 0}),
    ("OneHotEncoder", [text("b", "z", "a")], {"cats_strings": ["a", "b"]}),
    ("OneHotEncoder", [np.array(2)], {"cats_int64s": [1, 2, 3]}),
    ("CategoryMapper", [np.array([[1, 5], [3, 1]])], {"cats_int64s": [1, 3], "cats_strings": ["a", "b"]}),
    ("CategoryMapper", [text("b", "x")], {"cats_int64s": [1, 3], "cats_strings": ["a", "b"], "default_int64": 8}),
    *[("Normalizer", [x], {"norm": norm})
      for norm in ("MAX", "L1", "L2")
      for x in (X, X[0], np.zeros((2, 3), F32), -np.abs(X), np.arange(-3, 3).reshape(2, 3), X.astype(np.float64))],
]  # fmt: skip


@batched
@pytest.mark.parametrize(("op", "inputs", "attributes"), FEATURES)
def test_features(tmp_path, op, inputs, attributes):
    compare(tmp_path, op, inputs, attributes)


LABELS = [
    (1, np.array([1, 0, 9]), {"classes_strings": ["a", "b"]}),
    (1, text("b", "a", "x"), {"classes_strings": ["a", "b"], "default_int64": 7}),
    (2, text("b", "a", "x"), {"keys_strings": ["a", "b"], "values_int64s": [5, 6]}),
    (2, text("b", "a", "x"), {"keys_strings": ["a", "b"], "values_floats": [0.5, 1.5], "default_float": 2.5}),
    (2, np.array([[1, 2, 3]]), {"keys_int64s": [2, 3], "values_strings": ["b", "c"]}),
    (4, text("b", "a", "x"), {"keys_strings": ["a", "b"], "values_tensor": np.array([1.5, 2.5]),
                              "default_tensor": np.array([9.0])}),
    (4, np.array([np.nan, 1, 2]), {"keys_tensor": np.array([1, np.nan]), "values_tensor": np.array([1.0, 2.0]),
                                   "default_tensor": np.array([-1.0])}),
    (4, np.zeros((0, 2), np.int64), {"keys_int64s": [2], "values_int64s": [3]}),
]  # fmt: skip


@pytest.mark.parametrize(("version", "x", "attributes"), LABELS)
def test_label_encoder(tmp_path, version, x, attributes):
    compare(tmp_path, "LabelEncoder", [x], attributes, version)


# Without a kernel in onnxruntime, or against the specification there.
MORE_LABELS = [
    (2, np.array([1, np.nan, 0.5], F32), {"keys_floats": [np.nan, 0.5], "values_int64s": [5, 6]}, np.array([-1, 5, 6])),
    (4, np.array([1, 1]), {"keys_int64s": [1, 1], "values_strings": ["a", "b"]}, text("b", "b")),
    (4, np.array([1, 2, 3], np.int16),
     {"keys_tensor": np.array([2, 3], np.int16), "values_tensor": np.array([20, 30], np.int16)},
     np.array([-1, 20, 30], np.int16)),
    (4, np.array([1, 2], np.int32), {"keys_tensor": np.array([2], np.int32), "values_tensor": np.array([2.5])},
     np.array([-0.0, 2.5])),
]  # fmt: skip


@pytest.mark.parametrize(("version", "x", "attributes", "want"), MORE_LABELS)
def test_label_encoder_by_the_specification(tmp_path, version, x, attributes, want):
    assert_same(run(tmp_path, "LabelEncoder", [x], attributes, version), [want], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("OneHotEncoder", [np.array([7])], {"cats_int64s": [1], "zeros": 0}),
        ("ArrayFeatureExtractor", [X, np.array([3])], {}),
        ("ArrayFeatureExtractor", [X, np.array([-1])], {}),
        ("CastMap", [{5: 1.0}], {"map_form": "SPARSE", "max_map": 3}),
    ],
)
def test_values_out_of_range(tmp_path, op, inputs, attributes):
    with pytest.raises(OrtconvError):
        run(tmp_path, op, inputs, attributes)


@pytest.mark.parametrize("labels", [{"classlabels_strings": ["a", "b", "c"]}, {"classlabels_int64s": [1, 5, 9]}])
@pytest.mark.parametrize("x", [X, X[0]])
def test_zip_map(tmp_path, x, labels):
    model, feeds = model_of("ZipMap", [x], labels)
    assert run(tmp_path, "ZipMap", [x], labels) == unoptimized.run(model, feeds)


MAPS = [
    ("DictVectorizer", {"a": 0.5}, {"string_vocabulary": ["b", "a"]}),
    ("DictVectorizer", {3: 0.5, 1: 2.0}, {"int64_vocabulary": [1, 2, 3]}),
    *[("CastMap", {5: 2.5, 1: -1.75}, {"cast_to": to, "map_form": form, "max_map": 6})
      for to in ("TO_FLOAT", "TO_INT64", "TO_STRING") for form in ("DENSE", "SPARSE")],
]  # fmt: skip

# onnxruntime's Python interface takes no maps of these types.
MORE_MAPS = [
    ("DictVectorizer", {"a": 4, "c": 8}, {"string_vocabulary": ["a", "c", "b", "z"]}, np.array([[4, 8, 0, 0]])),
    ("DictVectorizer", {3: "x"}, {"int64_vocabulary": [1, 2, 3]}, text("", "", "x")[None]),
    ("CastMap", {5: "3", 1: "-4"}, {"cast_to": "TO_INT64"}, np.array([[-4, 3]])),
    ("CastMap", {5: "3", 1: "-4"}, {"cast_to": "TO_FLOAT"}, np.array([[-4, 3]], F32)),
    ("CastMap", {2: "3", 1: "-4"}, {"map_form": "SPARSE", "max_map": 4}, np.array([[0, -4, 3, 0]], F32)),
]


@pytest.mark.parametrize(("op", "x", "attributes"), MAPS)
def test_maps(tmp_path, op, x, attributes):
    compare(tmp_path, op, [x], attributes)


@pytest.mark.parametrize(("op", "x", "attributes", "want"), MORE_MAPS)
def test_maps_of_other_types(tmp_path, op, x, attributes, want):
    assert_same(run(tmp_path, op, [x], attributes), [want])


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2, 3])
def test_linear_regressor(tmp_path, targets, transform):
    attributes = {"coefficients": np.linspace(-0.1, 0.2, 3 * targets).tolist(), "intercepts": [0.5] * targets,
                  "targets": targets, "post_transform": transform}  # fmt: skip
    compare(tmp_path, "LinearRegressor", [X], attributes)


@batched
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_linear_classifier(tmp_path, dtype, transform):
    attributes = {"coefficients": RNG.uniform(-0.1, 0.1, 9).tolist(), "intercepts": [0.5, 0.25, 0.75],
                  "classlabels_ints": [3, 5, 7], "post_transform": transform}  # fmt: skip
    compare(tmp_path, "LinearClassifier", [X.astype(dtype)], attributes, n_outputs=2, atol=1e-4)


def test_coefficients_beyond_the_last_class_are_not_used(tmp_path):
    attributes = {"coefficients": np.linspace(-0.1, 0.2, 18).tolist(), "intercepts": [0.5, 0.25, 0.75],
                  "classlabels_ints": [3, 5, 7]}  # fmt: skip
    compare(tmp_path, "LinearClassifier", [X], attributes, n_outputs=2)


def test_intercepts_of_another_number_than_targets_are_not_used(tmp_path):
    attributes = {"coefficients": np.linspace(-0.1, 0.2, 6).tolist(), "intercepts": [100.0], "targets": 2}
    compare(tmp_path, "LinearRegressor", [X], attributes)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear_classifier_without_labels(tmp_path, transform):
    attributes = {"coefficients": [1.0, 0.5, -1.0], "intercepts": [0.1], "post_transform": transform}
    compare(tmp_path, "LinearClassifier", [X], attributes, n_outputs=2)


@pytest.mark.parametrize("transform", [t for t in TRANSFORMS if t != "PROBIT"])
def test_linear_classifier_of_two_classes(tmp_path, transform):
    attributes = {"coefficients": [1.0, 0.5, -1.0], "intercepts": [0.1], "classlabels_strings": ["no", "yes"],
                  "post_transform": transform}  # fmt: skip
    compare(tmp_path, "LinearClassifier", [X], attributes, n_outputs=2)


VECTORS = RNG.standard_normal((7, 3)).astype(F32)
KERNELS = {"LINEAR": [0.0, 0.0, 0.0], "POLY": [0.5, 1.0, 3.0], "RBF": [0.5, 0.0, 0.0], "SIGMOID": [0.25, 0.1, 0.0]}


def svm(kind, classes, **more):
    counts = {2: [4, 3], 3: [2, 2, 3], 4: [2, 2, 1, 2]}[classes]
    pairs = classes * (classes - 1) // 2
    numbers = np.random.default_rng(classes)
    return {
        "kernel_type": kind, "kernel_params": KERNELS[kind], "support_vectors": VECTORS.ravel().tolist(),
        "vectors_per_class": counts, "coefficients": numbers.standard_normal((classes - 1) * 7).tolist(),
        "rho": numbers.standard_normal(pairs).tolist(), "classlabels_ints": list(range(10, 10 + classes)), **more,
    }  # fmt: skip


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_svm_classifier(tmp_path, classes, kind):
    compare(tmp_path, "SVMClassifier", [X], svm(kind, classes), n_outputs=2, rtol=1e-4, atol=1e-5)


def test_coefficients_of_further_support_vectors_are_not_used(tmp_path):
    attributes = svm("RBF", 2)
    attributes["coefficients"] += [1.0, -1.0]
    compare(tmp_path, "SVMClassifier", [X], attributes, n_outputs=2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transform", [t for t in TRANSFORMS if t != "PROBIT"])
@pytest.mark.parametrize("classes", [2, 3])
def test_svm_classifier_transforms(tmp_path, classes, transform):
    attributes = svm("RBF", classes, post_transform=transform)
    compare(tmp_path, "SVMClassifier", [X], attributes, n_outputs=2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_svm_classifier_probabilities(tmp_path, classes):
    pairs = classes * (classes - 1) // 2
    attributes = svm("RBF", classes, prob_a=[-1.5] * pairs, prob_b=[0.1] * pairs)
    compare(tmp_path, "SVMClassifier", [X], attributes, n_outputs=2, rtol=1e-4, atol=1e-5)
    assert_same(run(tmp_path, "SVMClassifier", [X], attributes, n_outputs=2)[1].sum(axis=1), np.ones(5, F32))


def test_svm_classifier_without_vectors(tmp_path):
    attributes = {"coefficients": VECTORS[:3].ravel().tolist(), "rho": [0.5], "classlabels_strings": ["a", "b", "c"],
                  "kernel_params": KERNELS["LINEAR"]}  # fmt: skip
    compare(tmp_path, "SVMClassifier", [X], attributes, n_outputs=2)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(tmp_path, one_class, kind):
    attributes = {"kernel_type": kind, "kernel_params": KERNELS[kind], "support_vectors": VECTORS.ravel().tolist(),
                  "coefficients": np.linspace(-1, 1, 7).tolist(), "rho": [0.1], "n_supports": 7,
                  "one_class": one_class}  # fmt: skip
    compare(tmp_path, "SVMRegressor", [X], attributes, rtol=1e-4, atol=1e-5)


def test_svm_regressor_without_vectors(tmp_path):
    attributes = {"coefficients": [1.0, -2.0, 0.5], "rho": [0.25], "kernel_params": KERNELS["LINEAR"]}
    compare(tmp_path, "SVMRegressor", [X], attributes)
