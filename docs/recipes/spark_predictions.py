"""Predictions for the rows of a DataFrame of Spark."""

from pyspark.sql.types import StructType


def with_predictions(frame, estimator, columns, name="prediction", kind="double"):
    """Return the DataFrame with a column of predictions from these columns, of a type of Spark."""

    def predict(frames):
        for rows in frames:
            yield rows.assign(**{name: estimator.predict(rows[columns].to_numpy())})

    return frame.mapInPandas(predict, StructType([*frame.schema.fields]).add(name, kind))
