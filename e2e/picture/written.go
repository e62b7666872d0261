package picture

import (
	"math"
	"strconv"
	"time"
)

// written is a value with its unit, as Grafana names units.
func written(value float64, unit string) string {
	switch {
	case math.IsInf(value, 1):
		return "more"
	case unit == "percentunit":
		return strconv.FormatFloat(100*value, 'f', 0, 64) + " %"
	case unit == "s" && value >= 60:
		return (time.Duration(value) * time.Second).String()
	case unit == "s":
		return short(value) + " s"
	default:
		return short(value)
	}
}

// short has three digits, unless there are more before the point.
func short(value float64) string {
	digits := 0
	for digits < 4 && math.Abs(value)*math.Pow10(digits) < 100 && math.Abs(value*math.Pow10(digits)-math.Round(value*math.Pow10(digits))) > 1e-9 {
		digits++
	}
	return strconv.FormatFloat(value, 'f', digits, 64)
}

// ceiling is the next value that is easily divided by four.
func ceiling(value float64) float64 {
	if value <= 0 {
		return 1
	}
	unit := math.Pow10(int(math.Floor(math.Log10(value))))
	for _, factor := range []float64{1, 2, 4, 6, 8} {
		if value <= factor*unit {
			return factor * unit
		}
	}
	return 10 * unit
}
