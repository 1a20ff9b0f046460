"""Compression of short texts and small graphs, whose usual words are known to both sides."""

from __future__ import annotations

import zlib

__all__ = ["LARGEST", "compressed", "decompressed"]

#: The most bytes of a graph that is compressed, and the first byte of compressed ones.
LARGEST, _ZLIB = 1 << 18, b"\x78"
#: Usual texts of pipelines as ``text_patterns`` writes them: # is a number, a space an end, and ~ a space.
_PATTERNS = b"""\
IsNaN X Is_Y# Is_IsNaN Not No_Y# No_Not Where Wh_output# Wh_Where Cast Ca_output# Ca_Cast to Equal
 Eq_Equalcst Eq_C# Eq_Equal Eq_Equalcst# Eq_C## Eq_Equal# Flatten Fl_output# Fl_Flatten axis Neg Ne_Y#
 Ne_Neg Shape Sh_shape# Sh_Shape Ca_output## Ca_Cast# Fl_output## Fl_Flatten# Mul Mu_Mulcst Mu_C# Mu_Mul
 Add Ad_Addcst Ad_C# Ad_Add Mu_C## Mu_Mul# Ad_C## Ad_Add# Ad_Addcst# Div Di_Divcst Di_C# Di_Div Di_C##
 Di_Div# Gather quantiles Ga_output# Ga_Gather quantiles_neg_rev Ga_output## Ga_Gather# GreaterOrEqual
 Gr_C# Gr_GreaterOrEqual Gr_C## Gr_GreaterOrEqual# Wh_output## Wh_Where# references references_neg_rev
 LessOrEqual Le_C# Le_LessOrEqual Sub Su_C## Su_Sub# Le_C## Le_LessOrEqual# Su_Sub Le_LessOrEqualcst
 Is_Y## Is_IsNaN# Or Or_C# Or_Or Or_C## Or_Or# Su_C# Mu_Mulcst# Wh_Wherecst Reshape variable# Re_Reshape
 constant~of~QuantileTransformer mean sub_result MatMul transform_matrix transformed_column
 constant~of~PCA pref_C## pref_Div pref_Sub# pref_Add cast_column cast_column# Cast# Less pref_Less
 pref_output## pref_Cast# range_column less_result range_column# less_result# Less# Log pref_output#
 pref_Log pref_Log# Pow pref_Y## pref_Not pref_Powcst pref_Z# pref_Pow pref_Powcst# pref_Z## pref_Pow#
 pref_Mulcst# pref_Mul# pref_Neg concatenated_array argmax_output argmax_output# ArgMax# pref_Imputer
 imputed_value_floats replaced_value_float pref_Imputer# pref_Mulcst pref_Mul union features N# selected
 selected# rows product product# shape# one column column/Gather column# column#/Gather ConstantOfShape
 ones value Binarizer threshold zero_float zero_column one_float last_column cast_result cast_result#
 onehot_result cats_int#s onehot_result# digitised_output_# ordinal_output# column_index#
 ArrayFeatureExtractor column_indices ArrayFeatureExtractor# column_indices# variable#_Mul
 variable#_Mul/Mul ReduceSum variable#_ReduceSum variable#_ReduceSum/ReduceSum variable#_Equal
 variable#_Equal/Equal variable#_Where variable#_Where/Where Sqrt variable#_Sqrt variable#_Sqrt/Sqrt
 variable#/Div const_#d_#_# const_#.#_f#_# constant~of~KBinsDiscretizer constant~of~MinMaxScaler
 constant~of~PowerTransformer constant~of~PolynomialFeatures cast_input Cast# MatMul coefs_# mul_result
 Add intercepts_# add_result Relu next_activations mul_result# MatMul# add_result# Add# next_activations#
 Relu# Softmax probabilities ArgMax v_ArgMax_# ArgMax_node_# keepdims Gather classes v_Gather_#
 Gather_node_# label Cast_node_# skl#onnx #.#.# ai.onnx Gather X columns extracted_feature_columns
 extracted_feature_columns/Gather axis columns_# extracted_feature_columns#
 extracted_feature_columns#/Gather Concat merged_columns axis LabelEncoder label_encoder keys_strings
 values_int#s ai.onnx.ml OneHotEncoder c#out cats_strings zeros OneHotEncoder# concat_result Concat#
 Imputer variable imputed_value_floats replaced_value_float Imputer# Reshape shape_tensor# ordinal_output
 Reshape# concat_result# shape_tensor variable# Sub offset variable_Sub variable_Sub/Sub variable#_Sub
 variable#_Sub/Sub Mul scale variable/Mul offset_# scale_# variable#/Mul Cast to transformed_column Gemm
 coef intercept variable/Gemm probabilities_Gemm probabilities_Gemm/Gemm Greater const_#.#_f#
 probabilities_Greater probabilities_Greater/Greater probabilities_Cast probabilities_Cast/Cast const_#d_#
 probabilities_Reshape probabilities_Reshape/Reshape Gather classes label_# label_#/Gather Sigmoid
 probabilities_Sigmoid probabilities_Sigmoid/Sigmoid probabilities_Sub probabilities_Sub/Sub probabilities
 probabilities/Concat Gemm coef intercept probability_tensor_Gemm probability_tensor_Gemm/Gemm ArgMax
 probability_tensor_ArgMax probability_tensor_ArgMax/ArgMax keepdims classes label_# label_#/Gather
 Softmax probability_tensor probability_tensor/Softmax label Cast# Abs probabilities_Abs
 probabilities_Abs/Abs ReduceSum const_#d_# probabilities_ReduceSum probabilities_ReduceSum/ReduceSum
 Equal const_#.#_f# probabilities_Equal probabilities_Equal/Equal Where probabilities_Where
 probabilities_Where/Where Div probabilities/Div Pipeline n#_size_# c#_size_# X_size_# unk__#
 onnxsgd.frozen constant~of~OneHotEncoder constant~of~OrdinalEncoder constant~of~a~scaler
 constant~of~a~formula \
""".replace(b"\n", b"").translate(bytes.maketrans(b" ~#", b"\x00 \x01"))
#: The dictionary of zlib: usual words of graphs, then of attributes. Pickles of format 3 need it as it is.
_USUAL = (
    _PATTERNS
    + b"""\
Squeeze Unsqueeze Identity Sqrt Neg Exp Log Not Pow Tanh tanh Flatten Conv MaxPool Shape ConstantOfShape
 LayerNormalization node_Gemm_0 raw_scores_tensor_Gemm/Gemm raw_scores_tensor_Cast/Cast negative_class_proba
 out_activations_result variable_Sqrt/Sqrt variable_ReduceSum/ReduceSum extracted_feature_columns1/Gather
 imputed_value_floats replaced_value_float Imputer Mu_Mulcst Mu_Mul Mu_C0 Ad_Addcst Ad_Add Ca_Cast
 Ca_output0 cats_strings zeros OneHotEncoder1 shape_tensor concat_result merged_columns transformed_column
 transform_matrix matmul_result sub_result mean probabilities_Gemm/Gemm probabilities_Sigmoid/Sigmoid
 probabilities_Sub/Sub probabilities_Greater/Greater probabilities_Cast/Cast probabilities_Reshape/Reshape
 probabilities/Concat const_1d_1 const_1d_0 next_activations Relu1 MatMul1 add_result1 mul_result1 Add1
 cast_input mul_result coefs_1 intercepts_1 coefs_0 intercepts_0 probability_tensor_ArgMax/ArgMax keepdims
 label_1/Gather probability_tensor_Gemm/Gemm probability_tensor/Softmax probabilities_Abs/Abs
 probabilities_ReduceSum/ReduceSum probabilities_Equal/Equal probabilities_Where/Where const_0.0_f32
 const_1.0_f32 probabilities/Div unk__1 unk__0 ArgMax_node_0 v_ArgMax_0 Gather_node_1 v_Gather_1 Cast_node_2
 Reshape_node_0 v_Reshape_0 Greater_node_1 v_Greater_1 Concat1 Concat variable1 variable/Mul
 variable_Sub/Sub offset scale columns classes label probabilities coef intercept unity axis to X_size_0
 skl2onnx 1.20.0 ai.onnx.ml Pipeline ["_components","components_","transposed"],"_mean","mean_",""],
"_scale","scale_","inverse"]][{"n_updates":,"epoch_updates":,"moments":[["",{"array":"0/0/1"},
{"array":"0/0/2"},{"array":"0/0/3"}],["X","model":{"bytes":"3"},"score_model":{"bytes":"4"},
"score_model":null,"shared":[[],[]],"link":"identity","own","sigmoid","link":"softmax","weights":["coef",
"intercept"],"intercepts":["intercept"],"linear":["coef","intercept"],"linear":null,"classes":{"array":"9"},
"classes":null,"exported_for":null,"tensors":[["coef","weight",{"array":"11/0/2"}],["coef","velocity",
{"array":"first_moment",{"array":"second_moment",{"array":"log_factor",{"array":"average",
{"array":"coefs_0","intercepts_0","coefs_1","intercepts_1",["intercept","weight",{"array":"12/1/2"}]],
"random_state":["MT19937",{"array":"13/1"},624,0,0.0],"eta":0.01,"t":,"l1_total":0.0,"loss_curve":[],
"validation_scores":[],"learning_rates":[],"owners":{"dict":[["optimizer","onnxsgd.optimizers.SGD velocity
 raw"],"onnxsgd.optimizers.Adam first_moment/second_moment raw","onnxsgd.optimizers.BlockAdam
 first_moment/second_moment/log_factor standardised"],["schedule","onnxsgd.schedules.Constant [('eta0',
 0.01)]"],["schedule","onnxsgd.schedules.InvScaling [('eta0', 0.01), ('power_t', 0.25)]"],["schedule",
"onnxsgd.schedules.Auto [('eta0', 0.05)]"],["n_rows",["mean_weight",1.0]]},"is_trained":true},
{"_class_axis":null,"_follows_lengths":false,"_given":"same","_given_classes":{"array":"_given_classes"},
"_has_several_labels":false,"_n_outputs":1,"_record":{"tuple":[{"dict":[["other",0.00],["read",0.00],["inner
 fit",0.0],["convert",0.00],["differentiate",0.00],["compile",0.00],["frozen part",0.00],["train",0.00],
["score",0.0]]},{"tuple":[null,null]},{"tuple":[0,0]}]},"_row_shapes":{"dict":[["X",{"tuple":[4]}]]},
"_score_shape":{"tuple":[3]},"_seed":{"tuple":[0]},"_set_before":{"dict":[]},"_y_is_vector":true,
"_y_shape":{"tuple":[]},"adapter":null,"alpha":0.0001,"average":false,"average":true,"batch_norm":null,
"batch_size":null,"checkpoint":null,"checkpoint_every":1,"class_weight":null,"classes":null,"device":"cpu",
"dropout":null,"dtype":null,"early_stopping":false,"engine":"auto","engine_":"portable","epsilon":0.1,
"eta0":null,"gradient_accumulation_steps":1,"head":null,"l1_ratio":0.15,"learning_rate":"constant",
"learning_rate":"invscaling","learning_rate":"auto","learning_rate_multipliers":null,"loss":"squared_error",
"loss":"log_loss","max_grad_norm":null,"max_grad_value":null,"max_iter":1000,"momentum":0.0,
"n_features_in_":,"n_iter_":,"n_iter_no_change":5,"n_jobs":null,"n_threads":null,"nesterov":false,
"optimizer":"adam","optimizer":null,"output":null,"penalty":"l2","power_t":0.25,"random_state":null,
"random_state":0,"record_update_norms":false,"shuffle":true,"steps_per_epoch":null,"t_":,"tol":0.001,
"trainable":null,"validation_fraction":0.1,"verbose":0,"warm_start":true,"warm_start":false},["classes_"],
[["0/0/1","<f8",[1]],["3","|u1",[]],["4","|u1",[]],["10","<i8",[3]],["11/0/2","<f4",[]],["13/1","<u4",
[624]],["_given_classes","<i8",[3]]],[]]""".replace(b"\n", b"")
)


def compressed(content: bytes) -> bytes:
    """Return bytes in fewer ones."""
    packer = zlib.compressobj(zlib.Z_BEST_COMPRESSION, zdict=_USUAL)
    return packer.compress(content) + packer.flush()


def decompressed(saved: bytes, most: int = LARGEST) -> bytes:
    """Return the bytes that :func:`compressed` was given, of which none begin as compressed ones do.

    Others are returned as they are. `most` : the most bytes that are returned.

    Raises
    ------
    ValueError
        If the bytes are cut or changed, or have more than `most`.
    """
    if saved[:1] != _ZLIB:
        return saved
    unpacker = zlib.decompressobj(zdict=_USUAL)
    try:
        content = unpacker.decompress(saved, most + 1)
    except zlib.error as error:
        raise ValueError(f"a graph in it is damaged: {error}") from error
    if len(content) > most or not unpacker.eof:
        raise ValueError(f"a graph in it has more than {most} bytes, or fewer than its own")
    return content
