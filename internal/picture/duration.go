package picture

import (
	"math"
	"strconv"
	"time"
)

const day = 24 * time.Hour

// Duration writes a time as a person says it, with two digits, or as many as
// there are before the point: 850 µs, 1.2 s, 3 min 20 s, 5 h 10 min.
func Duration(d time.Duration) string {
	if d < 0 {
		return "-" + Duration(-d)
	}
	switch {
	case d == 0:
		return "0 s"
	case d < time.Microsecond:
		return strconv.FormatInt(int64(d), 10) + " ns"
	case d < 999500*time.Nanosecond:
		return digits(float64(d)/float64(time.Microsecond)) + " µs"
	case d < 999500*time.Microsecond:
		return digits(float64(d)/float64(time.Millisecond)) + " ms"
	case d < 59500*time.Millisecond:
		return digits(d.Seconds()) + " s"
	case d < time.Hour-500*time.Millisecond:
		return two(d.Round(time.Second), time.Minute, "min", time.Second, "s")
	case d < day-30*time.Second:
		return two(d.Round(time.Minute), time.Hour, "h", time.Minute, "min")
	case d < 60*day:
		return two(d.Round(time.Hour), day, "d", time.Hour, "h")
	}
	return strconv.FormatFloat(math.Round(d.Hours()/24), 'f', -1, 64) + " d"
}

// digits writes a number below 1000.
func digits(f float64) string {
	if f < 9.95 {
		return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Round(f), 'f', -1, 64)
}

func two(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	s := strconv.FormatInt(int64(d/large), 10) + " " + largeName
	if rest := d % large / small; rest > 0 {
		s += " " + strconv.FormatInt(int64(rest), 10) + " " + smallName
	}
	return s
}

// Span writes when something was, to the minute.
func Span(from, to time.Time) string {
	const date, clock, zone = "2006-01-02 ", "15:04", " MST"
	switch {
	case from.Format(date+clock) == to.Format(date+clock):
		return to.Format(date + clock + zone)
	case from.Format(date) == to.Format(date):
		return from.Format(date+clock) + " to " + to.Format(clock+zone)
	}
	return from.Format(date+clock) + " to " + to.Format(date+clock+zone)
}
