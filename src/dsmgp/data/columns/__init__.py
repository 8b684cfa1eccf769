"""From the columns of a table to inputs of a model: values, schema, encoding."""
