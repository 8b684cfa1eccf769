"""Tables with a time: trends and seasons, chosen by forecasting the end of the training rows from their beginning."""
