package travel

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run performs a transition for a trip that is described by state, and returns
// the new state's JSON.
func run(t *testing.T, script, state string) map[string]any {
	t.Helper()
	dir := t.TempDir()
	if err := Extract(dir); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", filepath.Join(dir, script))
	cmd.Env = append(os.Environ(), "WED_FLOW=travel", "WED_WID=7", "WED_TGID=1", "WED_TRANSITION=t")
	cmd.Stdin = strings.NewReader(`{"flow":"travel","wid":7,"tgid":1,"trname":"t","timeout":"00:00:10","payload":` + state + "}\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	var values map[string]any
	if err := json.Unmarshal(out, &values); err != nil {
		t.Fatalf("%s printed %s: %v", script, out, err)
	}
	return values
}

func TestTransitionsDecideByTheState(t *testing.T) {
	for _, c := range []struct {
		script, state, want string
	}{
		{"check_customer.sh", `{"customer":"Ada"}`, `{"customer_status":"valid"}`},
		{"check_customer.sh", `{"customer":"Mallory"}`, `{"customer_status":"unknown"}`},
		{"book_flight.sh", `{"destination":"Rome"}`, `{"flight":"WD407","flight_status":"booked"}`},
		{"book_flight.sh", `{"destination":"Reykjavik"}`, `{"flight_status":"none"}`},
		{"book_hotel.sh", `{"destination":"Rome","hotel":null,"hotel_choice":1}`, `{"hotel_status":"full"}`},
		{"book_hotel.sh", `{"destination":"Rome","hotel_choice":2}`, `{"hotel":"Station Inn","hotel_status":"booked"}`},
		{"book_hotel.sh", `{"hotel_choice":1,"destination":"Kyoto"}`, `{"hotel":"Grand Hotel","hotel_status":"booked"}`},
		{"close_trip.sh", `{}`, `{"trip":"confirmed"}`},
	} {
		got, err := json.Marshal(run(t, c.script, c.state))
		if err != nil || string(got) != c.want {
			t.Errorf("%s on %s: %s, want %s", c.script, c.state, got, c.want)
		}
	}
}

func TestRecoveryLeadsBackOrCancels(t *testing.T) {
	for state, want := range map[string]string{
		`{"customer_status":"valid","flight_status":"booked","hotel_status":"full","hotel_choice":1}`:  `{"hotel_choice":2,"hotel_status":null}`,
		`{"customer_status":"valid","flight_status":"booked","hotel_status":"full","hotel_choice":2}`:  `{"flight_status":"cancelled","trip":"cancelled"}`,
		`{"customer_status":"valid","flight_status":"none","hotel_status":"booked","hotel_choice":1}`:  `{"hotel_status":"cancelled","trip":"cancelled"}`,
		`{"customer_status":"valid","flight_status":"none","hotel_status":"full","hotel_choice":1}`:    `{"trip":"cancelled"}`,
		`{"customer_status":"unknown","flight_status":null,"hotel_status":null,"hotel_choice":1}`:      `{"trip":"cancelled"}`,
		`{"customer_status":"valid","flight_status":"booked","hotel_status":"full","hotel_choice":10}`: `{"flight_status":"cancelled","trip":"cancelled"}`,
	} {
		got, err := json.Marshal(run(t, "recover.sh", state))
		if err != nil || string(got) != want {
			t.Errorf("on %s: %s, want %s", state, got, want)
		}
	}
}

func TestEveryTransitionOfTheRulesHasAScript(t *testing.T) {
	dir := t.TempDir()
	if err := Extract(dir); err != nil {
		t.Fatal(err)
	}
	for _, tr := range Transitions() {
		if tr.Name != "_EXCPT" && !strings.Contains(Rules(), "'"+tr.Name+"'") {
			t.Errorf("no rule fires %s", tr.Name)
		}
		info, err := os.Stat(filepath.Join(dir, tr.Script))
		if err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s cannot be run: %v", tr.Script, err)
		}
	}
}

func TestExtractOverwritesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := Extract(dir); err != nil {
		t.Fatal(err)
	}
	if err := Extract(dir); err == nil {
		t.Error("files were overwritten")
	}
}
