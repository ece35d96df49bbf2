module github.com/wed-sql/wed_sql

go 1.26.0
