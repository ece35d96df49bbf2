package worker

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// Anybody may notify anything: a job is taken from what names one, and from nothing else.
func FuzzANotificationNamesAJobOrNothing(f *testing.F) {
	for _, s := range []string{`{"flow":"f","wid":1,"tgid":2}`, `{"flow":"f","wid":1e0,"tgid":2}`, `{"wid":9223372036854775808,"tgid":1}`, `{"flow":null,"wid":1,"tgid":99999999999}`, `[]`, `null`, "",
		`{"FLOW":"f","Wid":1,"tgid":1,"wid":2}`, `{"flow":"f","wid":1,"tgid":2} x`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		flow, k, ok := parseNotification(payload)
		if !ok {
			if flow != "" || k != (key{}) {
				t.Fatalf("%q: %q, %+v", payload, flow, k)
			}
			return
		}
		if !json.Valid([]byte(payload)) || !utf8.ValidString(flow) {
			t.Fatalf("%q names a job of %q", payload, flow)
		}
		text, err := json.Marshal(map[string]any{"flow": flow, "wid": k.wid, "tgid": k.tgid})
		if err != nil {
			t.Fatal(err)
		}
		if againFlow, again, ok := parseNotification(string(text)); !ok || again != k || againFlow != flow {
			t.Fatalf("%q is %s, which is %+v", payload, text, again)
		}
	})
}
